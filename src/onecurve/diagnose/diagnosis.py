"""Puts together what is known about a run: its times, what limits it, and what to change."""

from collections.abc import Mapping
from dataclasses import dataclass

from onecurve.describe.diagnosis import Diagnosis, StepTimes, TimeIdentity
from onecurve.describe.plan import Plan
from onecurve.diagnose import efficiency, pauses, settings, waiting
from onecurve.diagnose.gains import worth_naming
from onecurve.diagnose.history import RunHistory
from onecurve.diagnose.measured_estimator import MeasuredEstimator
from onecurve.diagnose.plan_change import plan_change
from onecurve.diagnose.step_times import step_times
from onecurve.diagnose.wall_time import wall_time
from onecurve.estimate.estimator import Estimator

_LEAST_STEPS = 2
"""A run with fewer has only its start."""


@dataclass(frozen=True)
class Prediction:
    """What the predictor knows about the run's job; None in place of it if the job cannot be predicted."""

    estimator: Estimator
    """For the machines of the run."""
    plan: Plan
    """The run's plan, complete."""


def diagnose(history: RunHistory, plan: Plan, prediction: Prediction | None, in_progress: bool, note: str) -> Diagnosis:
    """Find out where the time of a run went. `plan`: the one of its newest generation."""
    times = step_times(history, plan.mesh)
    wall = wall_time(history)
    start, columns = history.start, history.columns
    measured = MeasuredEstimator(prediction.estimator, prediction.plan, times) if prediction is not None else None
    predicted: Mapping[str, float] = start.predicted or (measured.predicted if measured is not None else {})
    compute = sum(predicted.get(cause, 0.0) for cause in ("forward", "backward", "recompute", "host")) or None
    findings = [
        waiting.data(history, times),
        waiting.slow_rank(history, times, plan.mesh),
        waiting.uneven_samples(times),
        waiting.busy_hosts(history, times),
        settings.threads(history, times, compute),
        settings.batch_norm(times),
        settings.host_reads(history, times),
        pauses.checkpoints(history, times),
        pauses.evaluations(history, times),
        plan_change(measured, prediction.plan, times, _handing_over(history, times))
        if measured is not None and prediction is not None
        else None,
    ]
    tokens = prediction.estimator.costs.tokens if prediction is not None else None
    samples_per_second = start.global_batch / times.total if times.total else 0.0
    identity = _identity(history, times, wall, predicted, prediction)
    fullest = max(history.ranks, key=lambda rank: sum(rank.components.values()))
    return Diagnosis(
        folder=history.folder,
        plan=str(plan),
        ranks=start.ranks,
        hosts=history.hosts,
        device=start.device,
        steps=columns.step[-1],
        steps_planned=start.steps,
        counted_steps=history.counted_steps,
        in_progress=in_progress,
        times=times,
        predicted=predicted,
        wall=wall,
        findings=worth_naming(findings),
        identity=identity,
        samples_per_second=samples_per_second,
        tokens_per_second=tokens.per_sample * samples_per_second if tokens is not None else None,
        speedup=_speedup(times, plan),
        utilization=_utilization(identity, times, len(history.columns)),
        noise_scale=history.noise.scale,
        memory=fullest.components,
        memory_rank=fullest.rank,
        predicted_memory=prediction.estimator.memory(prediction.plan) if prediction is not None else {},
        note=note,
    )


def _utilization(identity: TimeIdentity | None, times: StepTimes, steps: int) -> float | None:
    if identity is None or not times.total:
        return None
    return identity.work / steps / (identity.rate * identity.devices * times.total)


def _identity(
    history: RunHistory,
    times: StepTimes,
    wall: Mapping[str, float],
    predicted: Mapping[str, float],
    prediction: Prediction | None,
) -> TimeIdentity | None:
    if prediction is None or len(history.columns) < _LEAST_STEPS:
        return None
    estimator, plan = prediction.estimator, prediction.plan
    profile = estimator.costs.traces[plan.precision].large
    return efficiency.identity(
        times,
        wall,
        predicted,
        step_flops=profile.flops / profile.samples * plan.global_batch,
        rate=estimator.peak(plan) / plan.mesh.size,
        devices=plan.mesh.size,
        steps=len(history.columns),
    )


def _handing_over(history: RunHistory, times: StepTimes) -> float:
    """Seconds of a step in which ranks wait for data though their loader processes are not busy."""
    is_limited = any(waiting.is_limited_by_loading(rank, times.total) for rank in history.ranks)
    return 0.0 if is_limited else times.own.get("data", 0.0)


def _speedup(times: StepTimes, plan: Plan) -> float | None:
    """The work of all ranks over the time of a step: on one device it would take at least as long, one after another.

    Replicas all do the same update, which one device does once; recomputation it may not need.
    """
    if not times.total:
        return None
    size = plan.mesh.size
    work = size * sum(times.own.get(cause, 0.0) for cause in ("forward", "backward", "copy"))
    return (work + size / plan.mesh.replicate * times.own.get("update", 0.0)) / times.total
