"""The result of `onecurve check`: whether plans compute what one device computes."""

from dataclasses import dataclass
from typing import Literal

from onecurve.describe.plan import Precision

Outcome = Literal["holds", "differs", "failed", "refused"]


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The comparison of one plan with the one-device reference."""

    plan: str
    outcome: Outcome
    """`holds` and `differs`: it was compared; `failed`: it raised, died or made no progress; `refused`: onecurve does
    not run this model under this plan."""
    size: float = 0.0
    """The largest difference, as a fraction of the tensor's scale; in fp32, as a multiple of the reference's spread."""
    limit: float = 0.0
    """The largest difference that counts as equal for this tensor. It is larger than that of the check for a weight
    whose gradient is zero but for rounding: there, rounding decides in which direction Adam moves it."""
    step: int = 0
    """The step of that difference: the first step that differs, if any."""
    moved: bool = False
    """True if this is the last step, which begins with moved weights."""
    tensor: str = ""
    """Name of the tensor that differs most."""
    reason: str = ""
    """Why the plan failed or was refused."""

    @property
    def holds(self) -> bool:
        return self.outcome == "holds"


@dataclass(frozen=True)
class CheckResult:
    """The verdicts on all checked plans."""

    precision: Precision
    steps: int
    limit: float
    """Largest difference that counts as equal, in the unit of `Verdict.size`."""
    verdicts: tuple[Verdict, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """True if every plan holds."""
        return bool(self.verdicts) and all(verdict.holds for verdict in self.verdicts)
