"""How a run is doing, from what its ranks have recorded."""

import time
from collections.abc import Sequence
from itertools import pairwise

from onecurve.describe.record import WAITING
from onecurve.describe.run_status import RankStatus, RunState, RunStatus
from onecurve.diagnose.history import RankHistory, RunHistory
from onecurve.diagnose.step_times import own_of

MAX_SILENCE_SECONDS = 60.0
"""A run without an end that has recorded nothing for longer, and for ten steps, is not in progress any more."""
_UNLOCKED_SECONDS = 10.0
"""A run whose folder is not locked has ended after this time. Before, its first rank may be on the way back."""
_DETAILS = ("saved", "snapshots")
"""Events that are shown elsewhere, or not worth showing."""
_MAX_LOSSES = 120
_MAX_EVENTS = 6


def state_of(history: RunHistory, now: float, locked: bool | None = None) -> RunState:
    """Whether the run is in progress. `locked`: whether its first rank, which locks the folder, lives; None if that is
    not known."""
    generation, columns = history.generations[-1], history.columns
    if generation.end is not None:
        return "finished" if columns.step[-1] >= history.start.steps else "stopped"
    if locked is False and now - _newest(history) > _UNLOCKED_SECONDS:
        return "stopped"
    pauses = [record.seconds for record in history.evaluations[-1:]]
    silence = max(MAX_SILENCE_SECONDS, 10 * columns.seconds[-1], *(3 * seconds for seconds in pauses))
    return "running" if now - _newest(history) < silence else "silent"


def status_of(history: RunHistory, now: float | None = None, locked: bool | None = None) -> RunStatus:
    """`now`: in seconds since the epoch. `locked`: as for `state_of`."""
    now = time.time() if now is None else now
    columns, start, first = history.columns, history.start, history.ranks[0]
    step_seconds = sum(first.seconds.values()) / first.steps if first.steps else columns.seconds[-1]
    state, step = state_of(history, now, locked), columns.step[-1]
    return RunStatus(
        folder=history.folder,
        state=state,
        plan=start.plan,
        device=start.device,
        ranks=start.ranks,
        hosts=history.hosts,
        step=step,
        steps=start.steps,
        epoch=columns.samples[-1] / start.epoch_samples if start.epoch_samples else None,
        loss=columns.loss[-1],
        losses=_thinned(columns.loss),
        lr=columns.lr[-1],
        step_seconds=step_seconds,
        samples_per_second=start.global_batch / step_seconds if step_seconds else 0.0,
        seconds_left=(start.steps - step) * step_seconds if state == "running" else 0.0,
        utilization=_peak_seconds(history) / step_seconds if _peak_seconds(history) and step_seconds else None,
        memory=max(rank.memory for rank in history.ranks),
        age=now - _newest(history),
        checkpoint=next((event.text for event in reversed(history.events) if event.event == "saved"), ""),
        evaluation=_evaluation(history),
        events=tuple(_events(history)[-_MAX_EVENTS:]),
        rank_status=tuple(_rank_status(rank, now) for rank in history.ranks),
    )


def _peak_seconds(history: RunHistory) -> float:
    """That of the newest start that knows it: a run that is continued is not planned again."""
    plan, ranks = history.start.plan, history.start.ranks
    starts = [generation.start for generation in history.generations]
    same = [start.peak_seconds for start in starts if (start.plan, start.ranks) == (plan, ranks)]
    return next((seconds for seconds in reversed(same) if seconds), 0.0)


def _newest(history: RunHistory) -> float:
    times = [history.columns.time[-1], history.generations[-1].start.time]
    times += [event.time for event in history.events[-1:]]
    return max(*times, *(evaluation.time for evaluation in history.evaluations[-1:]))


def _rank_status(rank: RankHistory, now: float) -> RankStatus:
    total = sum(rank.seconds.values()) or 1.0
    return RankStatus(
        rank=rank.rank,
        host=rank.host,
        step=rank.last_step,
        age=now - rank.time,
        own_seconds=own_of(rank),
        waiting=sum(rank.seconds.get(cause, 0.0) for cause in WAITING) / total,
        data=rank.seconds.get("data", 0.0) / total,
        memory=rank.memory,
    )


def _evaluation(history: RunHistory) -> str:
    if not history.evaluations:
        return ""
    record = history.evaluations[-1]
    metrics = "".join(f", {name} {value:.4g}" for name, value in record.metrics.items())
    return f"step {record.step:,}: loss {record.loss:.4f}{metrics}"


def _events(history: RunHistory) -> list[str]:
    moments = [(event.time, f"{event.event}: {event.text}") for event in history.events if event.event not in _DETAILS]
    for generation in history.generations:
        if generation.record is not None and generation.record.generation > 1:
            moments.append((generation.record.time, generation.record.why))
    return [text for _, text in sorted(moments)]


def _thinned(values: Sequence[float]) -> tuple[float, ...]:
    """The mean of each of at most `_MAX_LOSSES` equal parts."""
    parts = min(_MAX_LOSSES, len(values))
    edges = [n * len(values) // parts for n in range(parts + 1)]
    return tuple(sum(values[a:b]) / (b - a) for a, b in pairwise(edges))
