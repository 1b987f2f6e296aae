"""What a check found."""

from dataclasses import dataclass

from onecurve.describe.plan import Precision


@dataclass(frozen=True)
class Verdict:
    """One plan against one device."""

    plan: str
    holds: bool
    size: float
    """The largest difference: as a fraction of the tensor's scale, or in float32 as a multiple of the spread."""
    step: int
    """Where it was: of the first step that differs, if any."""
    tensor: str


@dataclass(frozen=True)
class CheckResult:
    precision: Precision
    steps: int
    limit: float
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        return all(verdict.holds for verdict in self.verdicts)
