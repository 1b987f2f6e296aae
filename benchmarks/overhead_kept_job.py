"""The job of overhead_kept.py: the GPT of bare.py, in a run that is watched and takes snapshots in every other block of
its steps only.

Turned off are: the snapshots that rank 0 asks for, the samples that a thread of each rank takes, and what the ranks
tell each other about how long they wait.
"""

from bare import LR, SIZES, build
from overhead_rank import TokenChunks, mean_loss

import onecurve as oc
from onecurve.launch.launcher import Launcher
from onecurve.launch.rank_page import RankPage
from onecurve.runtime.snapshot_schedule import SnapshotSchedule

BLOCK = 24
"""Steps of a block."""
SNAPSHOT = "snapshot after step"
"""Each rank prints it, with the step."""


class Switch:
    """What the next step does, the same on all ranks."""

    step = 0
    """Steps that are done."""
    is_on = True
    allows_snapshot = True
    """Its snapshot will be on the other host before the block ends."""


_due, _taken = SnapshotSchedule.due, SnapshotSchedule.taken
_sample, _waited, _finish_step = Launcher._sample, Launcher.waited, RankPage.finish_step


def due(schedule: SnapshotSchedule, is_on_its_way: bool) -> bool:
    steps = schedule._steps
    is_due = _due(schedule, is_on_its_way)
    if not Switch.is_on:
        schedule._steps = steps  # the steps to the next snapshot are counted only while it is on
    return is_due and Switch.allows_snapshot


def taken(schedule: SnapshotSchedule, seconds: float, is_on_its_way: bool) -> None:
    _taken(schedule, seconds, is_on_its_way)
    print(f"{SNAPSHOT} {Switch.step}", flush=True)


def sample(launcher: Launcher, thread: int) -> None:
    if Switch.is_on:
        _sample(launcher, thread)


def waited(launcher: Launcher) -> float | None:
    return _waited(launcher) if Switch.is_on else None


def finish_step(page: RankPage, step: int) -> None:
    _finish_step(page, step)
    Switch.step = step
    Switch.is_on = step // BLOCK % 2 == 0
    Switch.allows_snapshot = Switch.is_on and step % BLOCK < BLOCK // 2


SnapshotSchedule.taken = taken  # type: ignore[method-assign]
SnapshotSchedule.due = due  # type: ignore[method-assign]
Launcher._sample = sample  # type: ignore[method-assign]
Launcher.waited = waited  # type: ignore[method-assign]
RankPage.finish_step = finish_step  # type: ignore[method-assign]


def job(steps: int = 1000) -> oc.Job:
    return oc.Job(
        model=build,
        loss=mean_loss,
        data=lambda: TokenChunks(1000),
        optimizer=oc.AdamW(lr=LR, weight_decay=0.1),
        schedule=oc.cosine(warmup=20),
        clip=1.0,
        global_batch=SIZES["batch"],
        steps=steps,
        save=oc.Save(minutes=1000),
    )
