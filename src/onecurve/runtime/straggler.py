"""Finds out that this rank is slower than the others, because they wait for it most of the time."""

import time
from collections.abc import Callable

from onecurve.describe.plan import Plan
from onecurve.train.step_report import StepOutcome

_LEAST_DIFFERENCE = 0.4
"""The others wait for this much more of their time than a slow rank."""
_LEAST_STEPS = 10
_LEAST_SECONDS = 5.0
"""And they do so for this many steps and this long: a rank that is slow for a moment is none."""
_AGAIN_SECONDS = 5.0
"""A rank that stays slow says so again after this time."""


class StragglerDetector:
    """One rank's view. All ranks exchange the share of their time that they wait, with every step."""

    def __init__(
        self,
        plan: Plan,
        data_rank: int,
        ask: Callable[[], float | None],
        tell: Callable[[float, float], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`ask`: returns the share of its time that this rank waits, or None if that is not known. `tell`: told this
        rank's speed, where the others have 1, and for how long it has been slow, once that is clear; and (1, 0) once it
        no longer is."""
        own = plan.shares[data_rank]
        others = (plan.round_size - own) / max(1, plan.mesh.data - 1)
        self._relative_share = own / others if others else 1.0
        self._is_comparable = plan.mesh.data == plan.mesh.size
        """Stages of a pipeline also wait for each other if none is slow."""
        self._ask, self._tell, self._clock = ask, tell, clock
        self._own: float | None = None
        self._steps = 0
        self._since = 0.0
        self._told_at: float | None = None

    def waited(self) -> float | None:
        """The share of its time that this rank waits, for the exchange. Asked once per step."""
        self._own = self._ask()
        return self._own

    def add(self, outcome: StepOutcome) -> None:
        """Take in what all ranks have exchanged in a step."""
        own, others = self._own, outcome.ranks_waited - 1
        if own is None or others < 1 or not self._is_comparable:
            return
        waited_by_others = (outcome.waited - own) / others
        if waited_by_others - own < _LEAST_DIFFERENCE:
            self._steps = 0
            if self._told_at is not None:
                self._told_at = None
                self._tell(1.0, 0.0)
            return
        if self._steps == 0:
            self._since = self._clock()
        self._steps += 1
        now = self._clock()
        is_slow = self._steps >= _LEAST_STEPS and now - self._since >= _LEAST_SECONDS
        if is_slow and (self._told_at is None or now - self._told_at >= _AGAIN_SECONDS):
            self._told_at = now
            self._tell(self._relative_share * (1 - waited_by_others) / (1 - own), now - self._since)
