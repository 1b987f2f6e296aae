"""What to do when a generation has ended before the work is done: a pure function of what is known."""

from dataclasses import dataclass
from typing import Literal

from onecurve.describe.assignment import RankFailure
from onecurve.launch.failure import is_cause

_MAX_FAILURES_AT_STEP = 3
_MAX_CORRUPTIONS = 3

Asked = Literal["", "grow", "rebalance"]
"""What the leader has asked the generation to end for; empty if it has not."""
Action = Literal["continue", "shrink", "grow", "rebalance", "smaller footprint", "wait", "give up"]
"""Form the next generation with the same plan; with a plan for the hosts that are left, or that are more now; with
smaller shares for slow ranks; with a plan that needs less memory; when enough hosts are there; or end the run."""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known when a generation has ended."""

    failures: tuple[RankFailure, ...]
    hosts: int
    """Hosts that are left."""
    lost_hosts: int
    least_hosts: int
    """Fewer are not enough for the run."""
    failures_at_step: int
    """How many generations in a row have now failed at this step."""
    corruptions: int = 0
    """How many generations in a row have now ended because a rank's weights were corrupted."""
    is_stopping: bool = False
    """True if the run was asked to stop."""
    has_smaller_plan: bool = False
    """True if there is a plan that needs less memory."""
    asked: Asked = ""


@dataclass(frozen=True)
class Decision:
    """What to do."""

    action: Action
    reason: str = ""
    """Why the run is given up, in addition to the failure itself; empty if the failure says it all."""


def decide(facts: Facts) -> Decision:
    """Decide how a run goes on."""
    out_of_memory = any(failure.is_out_of_memory for failure in facts.failures)
    if any(failure.text and is_cause(failure) and not _may_pass(failure) for failure in facts.failures):
        return Decision("give up")  # an error in the user's code or input comes again
    if facts.is_stopping:
        return Decision("give up", "the run was being stopped; it continues from its newest checkpoint")
    if out_of_memory and not facts.has_smaller_plan:
        return Decision("give up", "onecurve found no such plan for these ranks: use more hosts, or a smaller model")
    if out_of_memory and facts.hosts >= facts.least_hosts:
        return Decision("smaller footprint")
    if facts.corruptions >= _MAX_CORRUPTIONS:
        return Decision("give up", f"{facts.corruptions} times in a row: does the model change its weights?")
    if facts.failures_at_step >= _MAX_FAILURES_AT_STEP:
        return Decision("give up", f"it has now failed {facts.failures_at_step} times at the same step")
    if facts.hosts < facts.least_hosts:
        return Decision("wait")
    if facts.lost_hosts:
        return Decision("shrink")
    return Decision(facts.asked or "continue")


def _may_pass(failure: RankFailure) -> bool:
    """True if the run may go on after this failure although the rank has said something."""
    return failure.is_hang or failure.is_out_of_memory or failure.is_corrupted
