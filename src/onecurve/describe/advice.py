"""The planner's answer: the best plan, the alternatives, and why each of them lost."""

from dataclasses import dataclass

from onecurve.describe.estimate import Estimate


@dataclass(frozen=True)
class RunnerUp:
    """The best plan that uses another set of mesh axes, and the main reason why it lost."""

    estimate: Estimate
    reason: str


@dataclass(frozen=True)
class Advice:
    """The result of planning one job for one cluster."""

    script: str
    cluster: str
    """Description of the cluster for a person, such as `2 hosts × 8 H100-80GB-SXM`."""
    parameters: int
    global_batch: int
    best: Estimate | None
    """The fastest plan that fits, or None if no plan fits."""
    runners_up: tuple[RunnerUp, ...]
    frontier: tuple[Estimate, ...]
    """Slower plans that need less memory or cost less than the best one, fastest first."""
    hints: tuple[str, ...]
    """Changes that would make the job fit or run faster, and reasons why some plans were excluded."""
