"""Splits the time of a step into the ranks' own work, communication, and waiting for slow ranks.

A rank that waits in a collective waits for the last rank to arrive, and then for the data; only the sum is measured.
But all ranks end a step together. So a step takes as long as the rank with the most work of its own, and what remains
is communication. Of the difference between that rank and the average, a part is there in every step (a slow rank), and
a part moves from rank to rank: because samples are uneven, or, if a rank used less CPU time than it worked, because
other programs interrupt the ranks.
"""

import math
from collections.abc import Mapping, Sequence

from onecurve.describe.diagnosis import StepTimes
from onecurve.describe.mesh import Mesh
from onecurve.describe.record import PAUSES, WAITING, own_seconds
from onecurve.diagnose.history import RankHistory, RunHistory

_DEVIATIONS = 2.0
"""Standard errors by which a rank must be slower than the average."""


def step_times(history: RunHistory, mesh: Mesh) -> StepTimes:
    """The mean times of a counted step."""
    ranks = [rank for rank in history.ranks if rank.steps]
    causes = [*dict.fromkeys(cause for rank in ranks for cause in rank.seconds)]
    own = {cause: history.mean(cause) for cause in causes if cause not in WAITING and cause not in PAUSES}
    waits = {cause: history.mean(cause) for cause in causes if cause in WAITING}
    waited = sum(waits.values())
    slowest = min(waited, _slowest(ranks, mesh))
    varying = min(waited - slowest, max(0.0, history.spread - slowest)) if mesh.pipeline == 1 else 0.0
    uneven = min(varying, max(0.0, history.worked_spread - slowest))
    bubble = waits.pop("pipeline", 0.0)
    least = {cause: min(rank.mean(cause) for rank in ranks) for cause in waits}
    left = max(0.0, waited - bubble - slowest - varying)
    if bubble and slowest + varying > waited - bubble:  # a late stage is waited for in the pipeline
        bubble = waited - slowest - varying - left
    return StepTimes(
        own=own,
        communication=_in_proportion(least if any(least.values()) else waits, left),
        bubble=bubble,
        slowest=slowest,
        uneven=uneven,
        interrupted=varying - uneven,
        pauses={cause: history.mean(cause) for cause in PAUSES},
    )


def own_of(rank: RankHistory) -> float:
    """Seconds per step in which a rank does not wait for others."""
    return own_seconds(rank.seconds) / max(1, rank.steps)


def _slowest(ranks: Sequence[RankHistory], mesh: Mesh) -> float:
    """How much longer the slowest rank works than the average one, among those that do the same.

    A difference that could be chance, because the rank's steps differ so much from each other, is none.
    """
    stages: dict[int, list[RankHistory]] = {}
    for rank in ranks:
        stage = mesh.coordinates(rank.rank)["pipeline"] if rank.rank < mesh.size else 0
        stages.setdefault(stage, []).append(rank)
    differences = []
    for same in stages.values():
        slowest = max(same, key=own_of)
        difference = own_of(slowest) - sum(map(own_of, same)) / len(same)
        by_chance = _DEVIATIONS * slowest.deviation / math.sqrt(slowest.steps)
        differences.append(difference if difference > by_chance else 0.0)
    return sum(differences) / len(differences)


def _in_proportion(parts: Mapping[str, float], total: float) -> dict[str, float]:
    known = sum(parts.values())
    return {name: value / known * total if known else total / len(parts) for name, value in parts.items()}
