"""oc.prepare: everything is made ready, and the user writes the training loop.

with oc.prepare(job(), out="runs/mine") as run:
    for batch in run:
        report = run.step(batch)
        run.checkpoint()
"""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

from onecurve.checkpoint.saver import SaveEvent
from onecurve.describe.change import read_change
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.environment import is_rank_of_launcher, is_rank_of_torchrun
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.planner.plan_choice import AUTO, read_plan
from onecurve.runtime.build import RunBuilder
from onecurve.runtime.checkpoints import lock_run
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.runtime.run import Run
from onecurve.runtime.run_settings import RunSettings
from onecurve.verbs.kept import LOCK_SECONDS
from onecurve.verbs.loop_worker import loop_rank
from onecurve.verbs.row_access import row_access


def prepare(
    job: Job,
    plan: Plan | str = AUTO,
    *,
    out: str | Path | None = None,
    change: str | Sequence[str] = (),
    backward: Literal["step", "mine"] = "step",
) -> Run:
    """Prepare a job on this rank, alone or under torchrun or `onecurve run`, for a training loop of your own.

    Under `onecurve run script.py` (the script defines no `job()`) a rank or a host that fails is replaced, and the loop
    starts again on all ranks, from the newest snapshot or checkpoint: give `out`.

    Args:
        job: The `onecurve.Job` to train.
        plan: How to split it: a `onecurve.Plan`, its short text form, or the path of a plan.toml. Default: `"auto"`,
            that of `onecurve run --plan`, or a replica of the model on every rank.
        out: Folder for checkpoints; if it holds checkpoints of the same job, the run continues from the newest.
            Default: None, no checkpoints.
        change: Fields of the job that have changed since the checkpoint was saved: `"lr"`, `"schedule"`,
            `"global_batch"`, `"steps"`, `"data"`. Default: none; a changed job is refused.
        backward: With `"step"`, `run.step` calls backward. With `"mine"` your loop does (two optimizers, reinforcement
            learning), with `run.model`, `run.backward(weighted)` and `run.update(name)`. Default: `"step"`.

    Returns:
        The run: iterate over it for this rank's batches, and leave it with a `with` block, which saves.

    Example::

        job = oc.Job(
            model=MyModel,
            data=lambda: MyDataset(),
            loss=oc.loss.cross_entropy,
            optimizer=oc.AdamW(lr=3e-4),
            global_batch=8,
            steps=4,
        )
        with oc.prepare(job, out="runs/mine") as run:
            for batch in run:
                report = run.step(batch)  # forward, backward, reduction, clipping, update
                run.checkpoint()  # saves in the background if one is due
                print(report.step, report.loss)
    """
    if not isinstance(job, Job):
        raise OnecurveError(
            f"prepare: got a {type(job).__name__}, but an onecurve.Job is needed; call the function: job()"
        )
    if backward not in ("step", "mine"):
        raise OnecurveError(f"prepare: backward = {backward!r} (known: 'step', 'mine')")
    changed = read_change(change)
    manual = backward == "mine"
    if not manual:
        refuse_manual_backward(job, "prepare: run.step cannot train this job")
    if job.async_workers:
        raise OnecurveError("prepare: with mode='async' workers compute the steps; train this job with `onecurve run`")
    rank = loop_rank()
    if rank is None and is_rank_of_launcher() and not is_rank_of_torchrun():
        raise OnecurveError(
            "prepare: srun or mpirun has started several processes; a script with its own loop is started by torchrun, "
            "for example 'srun --ntasks-per-node=1 torchrun --nproc-per-node=8 …'"
        )
    world = rank.world if rank is not None else World.from_environment() or World()
    is_first = world.rank == 0
    settings = RunSettings(
        out=Path(out) if out is not None else None,
        change=changed,
        manual=manual,
        on_event=_warn if is_first else lambda _: None,
        rows=lambda world: row_access(job, rank.kept.launcher if rank is not None else None, world),
    )
    if rank is not None:
        launcher = rank.kept.launcher
        settings = replace(
            settings,
            stop=launcher,
            regroup=lambda: launcher.is_regroup_asked,
            hand_over=launcher.hand_over,
            on_interruption=rank.note_interruption,
        )
    chosen = read_plan(plan)
    if chosen is not None and rank is not None and rank.kept.generation.plan is not None:
        raise OnecurveError(
            f"prepare: the script asks for plan {chosen}, and onecurve run --plan gives one too; give it in one place"
        )
    patience = LOCK_SECONDS if rank is not None and rank.kept.generation.number > 1 else 0.0
    lock = lock_run(Path(out), job.save, patience) if out is not None and is_first else None
    if rank is None:
        run = RunBuilder(job, settings).build(chosen, world, lock)
    else:
        generation = rank.kept.generation
        chosen = chosen or generation.plan
        run = RunBuilder(job, settings).build(chosen, world, lock, generation.interruption, rank.kept.memory)
    if is_first and manual:
        _say(
            f"{run.plan}, backward='mine': whether every plan computes the same depends on your loop; onecurve check "
            "cannot prove it"
        )
    if is_first and run.changed:
        _say(f"changed {run.changed}")
    if is_first and run.warning:
        _say(run.warning)
    return run


def _warn(event: SaveEvent) -> None:
    if event.event == "warning":
        _say(event.text)


def _say(text: str) -> None:
    print(f"onecurve: {text}", file=sys.stderr, flush=True)
