"""Refuses plans and settings that do not fit a job or its world, before anything is built."""

from pathlib import Path

from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.describe.units import counted
from onecurve.device.device import VisibleDevices, ranks_on_visible_devices
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.model.deferred import defer_init
from onecurve.runtime.changed_job import (
    refuse_change_of_stale_batches,
    refuse_change_without_checkpoints,
)
from onecurve.runtime.checkpoints import refuse_changed_job
from onecurve.runtime.fingerprint import fingerprint
from onecurve.runtime.manual import refuse_manual_backward, refuse_unsupported_manual
from onecurve.runtime.run_settings import RunSettings
from onecurve.runtime.served_run import refuse_unsuitable_for_workers


def refuse_unsuitable(job: Job, plan: Plan, settings: RunSettings, world: World, host: VisibleDevices) -> None:
    """Refuse plans and settings that do not fit the job or the world."""
    refuse_change_without_checkpoints(settings.change, has_folder=settings.out is not None, saves=job.save is not None)
    refuse_change_of_stale_batches(settings.change, job.staleness.steps)
    starts_over = settings.fresh or "global_batch" in settings.change
    local_ranks = ranks_on_visible_devices(world.local_size)
    _validate(plan, job, host, local_ranks, None if starts_over else settings.out)
    _refuse_other_world(plan, world)
    refuse_unsuitable_for_workers(job, plan)
    if settings.manual:
        refuse_unsupported_manual(job, plan)
    else:
        refuse_manual_backward(job, "onecurve cannot step this job")


def _validate(plan: Plan, job: Job, host: VisibleDevices, local_ranks: int, earlier: Path | None) -> None:
    """Refuse a plan that does not fit the job. `earlier`: folder of the run that may be continued.

    The plan may come from that folder and not fit because the job has another batch now: then say that.
    """
    try:
        validate(plan, job.global_batch, host, local_ranks)
    except OnecurveError:
        if earlier is not None and job.save is not None:
            job_fingerprint = fingerprint(job, defer_init(job.model, job.seed).module, open_data(job))
            refuse_changed_job(job.save, earlier, job_fingerprint)
        raise


def _refuse_other_world(plan: Plan, world: World) -> None:
    if plan.mesh.size != world.size:
        raise OnecurveError(
            f"plan {plan}: it needs {counted(plan.mesh.size, 'rank')}, but this world has {world.size}; start "
            "as many ranks as the plan has, or change the plan"
        )
