"""The planner's answer: the best plan, the alternatives, and why each of them lost."""

from dataclasses import dataclass

from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import Tokens
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
    machines: Cluster
    parameters: int
    global_batch: int
    tokens: Tokens | None
    """The tokens of a sample, or None if the samples are not known to be sequences of tokens."""
    best: Estimate | None
    """The chosen plan: the simplest one that fits and is about as fast as the fastest; None if no plan fits."""
    choice: str
    """Why this plan was chosen although another one is predicted to be faster; empty if it is the fastest."""
    runners_up: tuple[RunnerUp, ...]
    frontier: tuple[Estimate, ...]
    """Slower plans that need less memory or cost less than the best one, fastest first."""
    hints: tuple[str, ...]
    """Changes that would make the job fit or run faster, and reasons why some plans were excluded."""
    faster_precision: str = ""
    """What a precision that was not allowed would save; empty if no precision is much faster."""
    machines_source: str = ""
    """Where the speeds of the machines and their links come from."""
