"""What to do when a generation could not end: a pure function of what is known."""

from dataclasses import dataclass
from typing import Literal

from onecurve.describe.assignment import RankFailure
from onecurve.launch.failure import is_cause

_MAX_FAILURES_AT_STEP = 3

Action = Literal["continue", "shrink", "wait", "give up"]
"""Form the next generation with the same plan; with a plan for the hosts that are left; when enough hosts are there;
or end the run."""


@dataclass(frozen=True, kw_only=True)
class FailureFacts:
    """What is known when a generation could not end."""

    failures: tuple[RankFailure, ...]
    hosts: int
    """Hosts that are left."""
    lost_hosts: int
    least_hosts: int
    """Fewer are not enough for the run."""
    failures_at_step: int
    """How many generations in a row have now ended at this step."""
    is_stopping: bool = False
    """True if the run was asked to stop."""


@dataclass(frozen=True)
class Decision:
    """What to do."""

    action: Action
    reason: str = ""
    """Why the run is given up, in addition to the failure itself; empty if the failure says it all."""


def decide(facts: FailureFacts) -> Decision:
    """Decide how a run goes on after a failure."""
    if any(failure.text and is_cause(failure) and not failure.is_hang for failure in facts.failures):
        return Decision("give up")  # an error in the user's code or input comes again
    if facts.is_stopping:
        return Decision("give up", "the run was being stopped; it continues from its newest checkpoint")
    if facts.failures_at_step >= _MAX_FAILURES_AT_STEP:
        return Decision("give up", f"it has now failed {facts.failures_at_step} times at the same step")
    if facts.hosts < facts.least_hosts:
        return Decision("wait")
    return Decision("shrink" if facts.lost_hosts else "continue")
