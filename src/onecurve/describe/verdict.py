"""The result of `onecurve check`: whether plans compute what one device computes."""

from dataclasses import dataclass

from onecurve.describe.plan import Precision


@dataclass(frozen=True)
class Verdict:
    """The comparison of one plan with the one-device reference."""

    plan: str
    holds: bool
    size: float
    """The largest difference, as a fraction of the tensor's scale; in fp32, as a multiple of the reference's spread."""
    step: int
    """The step of that difference: the first step that differs, if any."""
    tensor: str
    """Name of the tensor that differs most."""


@dataclass(frozen=True)
class CheckResult:
    """The verdicts on all checked plans."""

    precision: Precision
    steps: int
    limit: float
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)
