"""What the planner answers."""

from dataclasses import dataclass

from onecurve.describe.estimate import Estimate


@dataclass(frozen=True)
class RunnerUp:
    """The best plan of another kind, and the one reason why it is not the best of all."""

    estimate: Estimate
    reason: str


@dataclass(frozen=True)
class Advice:
    script: str
    cluster: str
    """In words."""
    parameters: int
    global_batch: int
    best: Estimate | None
    """None where nothing fits."""
    runners_up: tuple[RunnerUp, ...]
    frontier: tuple[Estimate, ...]
    """Beside the best: plans that take less memory, or less money, for more time; fastest first."""
    hints: tuple[str, ...]
    """What would make it fit, or faster."""
