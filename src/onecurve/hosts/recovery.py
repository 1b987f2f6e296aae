"""Leads a run through its generations: when one cannot go on, decides how the next one is formed."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from onecurve.describe.errors import InterruptError, OnecurveError, SignalName
from onecurve.describe.generation import Interruption
from onecurve.describe.host import HostRange, HostRegistration
from onecurve.describe.plan import Plan
from onecurve.hosts.decision import FailureFacts, decide
from onecurve.hosts.generation_end import GenerationEnd
from onecurve.hosts.leader import Leader, Placement
from onecurve.launch.failure import RankFailedError

_WAIT_SECONDS = 600.0
"""How long a run waits for hosts that take the place of lost ones."""


@dataclass(frozen=True)
class Crew:
    """Which ranks a generation has, and how they split the job."""

    placement: Placement
    plan: Plan | None = None
    predicted: Mapping[str, float] = field(default_factory=dict)
    """Predicted seconds of a step by cause; empty if the plan was given."""

    @property
    def size(self) -> int:
        """Number of ranks."""
        return sum(ranks for _, ranks in self.placement)


Choose = Callable[[Mapping[str, HostRegistration]], Awaitable[Crew]]
"""The hosts → the crew for them."""


async def lead(leader: Leader, work: str, count: HostRange, choose: Choose) -> str:
    """Run one generation after the other until the work is done; return the result of rank 0.

    Raises the error that ended the run, if it cannot go on.
    """
    crew = await choose(await leader.wait_for_hosts(count))
    begin = time.time()
    interruption: Interruption | None = None
    sizes: dict[int, int] = {}
    step, failures, failures_at_step = -1, 0, 0
    while True:
        sizes[leader.next_generation] = crew.size
        end = await leader.run_generation(work, crew.placement, crew.plan, crew.predicted, interruption)
        if end.result is not None:
            return end.result
        left = time.time()
        failures += 1
        failures_at_step = failures_at_step + 1 if end.step == step else 1
        step = end.step
        decision = decide(
            FailureFacts(
                failures=tuple(end.failures),
                hosts=leader.hosts,
                lost_hosts=len(end.lost),
                least_hosts=count.least,
                failures_at_step=failures_at_step,
                is_stopping=leader.stopped_by is not None,
            )
        )
        if decision.action == "give up":
            raise _final_error(end, decision.reason, leader.stopped_by)
        if decision.action == "wait":
            leader.say(f"{end.why()}; waiting for another host")
        plan = crew.plan
        if decision.action != "continue":
            crew = await choose(await leader.wait_for_hosts(count, _WAIT_SECONDS))
        interruption = Interruption(
            why=end.why(),
            step=step,
            time=end.broken_at,
            seconds={"leave": left - end.broken_at, "agree": time.time() - left},
            facts_known=end.facts_known,
            plan_changed=crew.plan != plan,
            snapshot=end.newest_snapshot(sizes),
            failures=failures,
            run_seconds=time.time() - begin,
        )


def _final_error(end: GenerationEnd, reason: str, stopped_by: SignalName | None) -> OnecurveError:
    error = end.error()
    if not reason:
        return error
    text = f"{error}; {reason}"
    return InterruptError(text, stopped_by) if stopped_by is not None else RankFailedError(text)
