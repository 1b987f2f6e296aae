"""Times a job's model on this device: forward and backward of a few micro-batches; nothing is trained."""

import logging
import statistics
import time
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from onecurve.data.training_data import TrainingData
from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import JobCosts, Timing
from onecurve.describe.plan import Precision
from onecurve.device.compilation import compile_blocks
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import Device
from onecurve.device.precision import autocast, master_dtype
from onecurve.estimate.scaling import along_samples
from onecurve.job.batch import MicroBatch
from onecurve.job.embedding import connect
from onecurve.job.job import Job
from onecurve.job.objective import objective_of
from onecurve.measure.blocks import find_blocks
from onecurve.model.deferred import DeferredModel
from onecurve.model.fake_mode import refuse_fake_tensors
from onecurve.model.materialize import Materializer
from onecurve.planner.table_sampling import NoRows

_REPETITIONS = 3
"""Each micro-batch size is timed this often, in turns with the others."""
_MIN_CALLS, _MIN_SECONDS = 2, 0.2
"""A timing runs at least this many calls after the first, and at least this long."""
_MAX_SECONDS = 3.0
"""A micro-batch that takes longer is timed once."""
_MEMORY_FRACTION = 0.4
"""Fraction of the device's memory that the timed model may take."""

_log = logging.getLogger(__name__)


def time_model(
    job: Job,
    data: TrainingData,
    deferred: DeferredModel,
    device: Device,
    cluster: Cluster,
    costs: JobCosts,
    precisions: Sequence[Precision],
) -> tuple[Timing, ...]:
    """Return timings per precision, thread count and micro-batch size. Consumes the deferred model.

    The result is empty if the model is too large for one device or fails on it; predictions are then used as they are.
    """
    if _too_large(costs, 1, precisions, cluster):
        return ()
    try:
        return _time_all(job, data, deferred, device, cluster, costs, precisions)
    except Exception:  # the user's model may fail on one device, for example for lack of memory
        _log.warning("the model could not be timed on this device", exc_info=True)
        return ()
    finally:
        if device.kind == "cpu":
            pin_to_cores(0, 1, 0)


def _time_all(
    job: Job,
    data: TrainingData,
    deferred: DeferredModel,
    device: Device,
    cluster: Cluster,
    costs: JobCosts,
    precisions: Sequence[Precision],
) -> tuple[Timing, ...]:
    Materializer(deferred.recorder, device.torch_device, master_dtype("fp32")).materialize(deferred.module)
    if isinstance(job.loss, nn.Module):
        job.loss.to(device.torch_device)
    module = deferred.module.train()
    connect(module, NoRows())  # what rows cost is predicted apart

    def micro_batches(precision: Precision) -> dict[int, MicroBatch]:
        sizes = [n for n in _micro_batch_sizes(job) if not _too_large(costs, n, [precision], cluster)]
        return {n: data.trial_micro(0, n).to(device.torch_device, master_dtype(precision)) for n in sizes}

    best_timings: list[Timing] = []
    for threads in sorted({1, cluster.cores}) if device.kind == "cpu" else [1]:
        if device.kind == "cpu":
            pin_to_cores(0, cluster.cores // threads, threads)
        for precision in precisions:
            timings: dict[int, list[Timing]] = {}
            micros = micro_batches(precision)
            for _ in range(_REPETITIONS):
                for samples, micro in micros.items():
                    forward, backward = _time(job, module, micro, precision, device)
                    timing = Timing(
                        precision=precision, threads=threads, samples=samples, forward=forward, backward=backward
                    )
                    timings.setdefault(samples, []).append(timing)
                    if _seconds(timing) > _MAX_SECONDS:
                        break  # a larger micro-batch takes even longer
                if any(_seconds(timing) > _MAX_SECONDS for same in timings.values() for timing in same):
                    break
            # Disturbances only ever make a measurement slower, so the fastest counts.
            best_timings += [min(same, key=_seconds) for same in timings.values()]
    if device.kind != "cpu":  # on CPU compilation takes longer than it saves in most runs
        best_timings += time_compiled(job, module, {name: micro_batches(name) for name in precisions}, device)
    return tuple(best_timings)


def time_compiled(
    job: Job, module: nn.Module, micro_batches: Mapping[Precision, Mapping[int, MicroBatch]], device: Device
) -> list[Timing]:
    """Time the model with compiled blocks; empty if it cannot be compiled here. The module stays compiled.

    `micro_batches`: by precision and number of samples.
    """
    timings = []
    try:
        compile_blocks(map(module.get_submodule, find_blocks(module)))
        for precision, micros in micro_batches.items():
            for samples, micro in micros.items():
                torch.compiler.reset()  # a second size would be compiled for all sizes, which a run does not do
                _time(job, module, micro, precision, device)  # compiles
                forward, backward = _time(job, module, micro, precision, device)
                timings.append(
                    Timing(
                        precision=precision,
                        threads=1,
                        samples=samples,
                        forward=forward,
                        backward=backward,
                        compiled=True,
                    )
                )
    except Exception:
        _log.warning("the model could not be compiled on this device", exc_info=True)
        return []
    return timings


def _seconds(timing: Timing) -> float:
    return timing.forward + timing.backward


def _too_large(costs: JobCosts, samples: int, precisions: Sequence[Precision], cluster: Cluster) -> bool:
    """True if weights, gradients and activations exceed the allowed fraction of memory."""
    for precision in precisions:
        profile = along_samples(costs.traces[precision], samples)
        if 2 * 4 * profile.parameters + profile.activation_bytes > _MEMORY_FRACTION * cluster.memory:
            return True
    return False


def _micro_batch_sizes(job: Job) -> list[int]:
    return sorted({max(1, job.global_batch // 8), max(1, job.global_batch // 2)})


@refuse_fake_tensors()
def _time(job: Job, module: nn.Module, micro: MicroBatch, precision: Precision, device: Device) -> tuple[float, float]:
    """Return the median seconds of forward and backward. Gradients accumulate, as they do from round to round."""
    objective = objective_of(job.loss)
    forwards: list[float] = []
    backwards: list[float] = []
    begin = time.perf_counter()
    while len(forwards) <= _MIN_CALLS or time.perf_counter() - begin < _MIN_SECONDS:
        start = time.perf_counter()
        with autocast(precision, device):
            loss = objective(micro.forward(module), micro).sum
        device.wait()
        middle = time.perf_counter()
        torch.autograd.backward([loss])
        device.wait()
        forwards.append(middle - start)
        backwards.append(time.perf_counter() - middle)
        if time.perf_counter() - begin > _MAX_SECONDS:
            break
    if len(forwards) == 1:
        return forwards[0], backwards[0]
    return statistics.median(forwards[1:]), statistics.median(backwards[1:])  # the first call warms up
