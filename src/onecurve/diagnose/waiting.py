"""Findings about ranks that wait: for data, or for a rank that is later than the others."""

import math
import statistics

from onecurve.describe.diagnosis import Finding, StepTimes
from onecurve.describe.mesh import Mesh
from onecurve.describe.units import counted, seconds_text
from onecurve.diagnose.gains import saved
from onecurve.diagnose.history import RankHistory, RunHistory
from onecurve.diagnose.step_times import own_of

_BUSY = 0.6
"""Loader processes that work for less than this part of the time do not limit a run."""
_LEAST_SLOWNESS = 1.25
"""A rank must take so many times as long as the others to be called slow."""
_SHARE = 0.5
"""What takes more than this part of the time of loading samples limits it."""
_MAX_PROCESSES = 64
_LEAST_INTERRUPTED = 0.15
"""Below this fraction of its work, a rank without a core waits for memory, files or its own threads."""
_MAX_NAMED_HOSTS = 4
_ROOM = 1.25
"""Loader processes should be able to prepare this many times the samples that are needed."""


def data(history: RunHistory, times: StepTimes) -> Finding | None:
    """Samples that arrive too late: too few loader processes, or slow storage."""
    # Others wait for the rank that waits the longest, and their samples arrive meanwhile.
    waited = max(rank.mean("data") for rank in history.ranks)
    if waited <= 0 or times.total <= waited:
        return None
    step, busy = times.total, times.total - waited
    slowest = max(history.ranks, key=lambda rank: rank.mean("data"))
    steps, processes = max(1, slowest.steps), max(1, slowest.loader_processes)
    loading, reading = slowest.loading_seconds / steps, slowest.storage_seconds / steps
    computing = slowest.loading_cpu_seconds / steps
    if not is_limited_by_loading(slowest, step):
        return None
    limit = f"waiting for data: {waited / step:.0%} of each step ({seconds_text(waited)} of {seconds_text(step)})"
    if reading > _SHARE * loading:
        return Finding(
            cause="storage",
            limit=f"{limit}; the storage is slow: reading takes {seconds_text(reading)} per step and rank",
            change='cache=oc.Cache("/fast/disk", "100G") in the job, which keeps files on each host after the first '
            "reading; data that is read only once needs more bandwidth",
            gain=saved(step, busy),
            job={"cache": 1},
        )
    needed = min(_MAX_PROCESSES, math.ceil(_ROOM * loading / max(busy, 1e-9)))
    limit = f"{limit}, with {processes} loader process{'es' * (processes > 1)} per rank"
    if computing > _SHARE * loading and processes >= slowest.start.cores:
        return Finding(
            cause="data",
            limit=f"{limit}, which use {seconds_text(computing)} of CPU time per step, and the rank has "
            f"{counted(slowest.start.cores, 'core')}",
            change="oc.data.prepared(…) around the data in the job does the work of a sample once, before the training",
            gain=saved(step, busy, spread=0.3),
        )
    return Finding(
        cause="data",
        limit=limit,
        change=f"workers={max(needed, processes + 1)} in the job",
        gain=saved(step, max(busy, loading / max(needed, processes + 1))),
        job={"workers": max(needed, processes + 1)},
    )


def is_limited_by_loading(rank: RankHistory, step: float) -> bool:
    """True if the loader processes of a rank are busy. If they are not, waiting for data is the handing over."""
    loading = rank.loading_seconds / max(1, rank.steps)
    return loading > _BUSY * max(1, rank.loader_processes) * step


def slow_rank(history: RunHistory, times: StepTimes, mesh: Mesh) -> Finding | None:
    """A rank that takes longer than the others for the same work, in most steps."""
    ranks = [rank for rank in history.ranks if rank.steps]
    if len(ranks) < 2 or not times.slowest or mesh.pipeline > 1:
        return None
    slowest = max(ranks, key=_worked)
    others = statistics.median(_worked(rank) for rank in ranks if rank is not slowest)
    factor = _worked(slowest) / others if others else 0.0
    if factor < _LEAST_SLOWNESS:
        return None
    where = f"rank {slowest.rank} on host {slowest.host or 'unknown'}"
    return Finding(
        cause="slow_rank",
        limit=(
            f"{where} is slower than the others: it works {factor:.1f} times as long ({seconds_text(_worked(slowest))} "
            f"per step, the others {seconds_text(others)}), and all wait for it"
        ),
        change=f"find out what else runs on {slowest.host or 'its host'} and how many cores rank {slowest.rank} really "
        "gets; or leave that host out",
        gain=saved(times.total, times.total - (_worked(slowest) - others)),
    )


def _worked(rank: RankHistory) -> float:
    """Seconds per step in which a rank waits neither for others nor for data."""
    return own_of(rank) - rank.mean("data")


def busy_hosts(history: RunHistory, times: StepTimes) -> Finding | None:
    """Other programs that interrupt the ranks, now one and now another, or a rank that is alone."""
    lost = times.interrupted or _interrupted_alone(history)
    if not lost:
        return None
    hosts = sorted({rank.host for rank in history.ranks})
    named = ", ".join(hosts[:_MAX_NAMED_HOSTS]) + ", …" * (len(hosts) > _MAX_NAMED_HOSTS)
    effect = "waiting for the rank that was interrupted takes" if times.interrupted else "the rank has no core for"
    return Finding(
        cause="busy_hosts",
        limit=(
            f"other programs take the cores of the ranks now and then: {effect} {lost / times.total:.0%} of the time "
            f"({seconds_text(lost)} of {seconds_text(times.total)})"
        ),
        change=f"stop what else runs on {named}, or leave it some cores: fewer ranks or threads",
        gain=saved(times.total, times.total - lost, spread=0.5),
    )


def _interrupted_alone(history: RunHistory) -> float:
    """Seconds of a step in which the only rank of a run on CPU cores had work, and no core."""
    rank = history.ranks[0]
    if len(history.ranks) > 1 or history.start.device != "cpu" or not (rank.cpu_seconds and rank.steps):
        return 0.0
    worked = own_of(rank) - rank.mean("data")
    lost = worked - rank.cpu_seconds / rank.steps
    return lost if lost > _LEAST_INTERRUPTED * worked else 0.0


def uneven_samples(times: StepTimes) -> Finding | None:
    """Samples that take very different times: in each step another rank is late."""
    if not times.uneven:
        return None
    return Finding(
        cause="uneven_samples",
        limit=(
            f"samples take very different times: in each step another rank is the last, and the others wait for it, "
            f"{times.uneven / times.total:.0%} of the time ({seconds_text(times.uneven)} of "
            f"{seconds_text(times.total)})"
        ),
        change="make samples equally long: .packed(length) joins sequences of tokens; otherwise sort or cut long ones, "
        "or use a larger global_batch, in which differences even out",
        gain=saved(times.total, times.total - times.uneven, spread=0.3),
    )
