"""A job's model timed on this device, forward and backward: a few micro-batches, nothing is trained."""

import statistics
import time
from collections.abc import Sequence

import torch

from onecurve.data.training_data import TrainingData
from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import Costs, Timing
from onecurve.describe.plan import Precision
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import Device
from onecurve.device.precision import autocast, master_dtype
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job
from onecurve.job.objective import objective_of
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.predict.scaling import along_samples

_TURNS, _LEAST, _SECONDS, _LONG = 3, 2, 0.2, 3.0
"""How often it is a micro-batch's turn, how many times it runs then, for how long, and from what on once is enough."""
_ROOM = 0.4
"""The part of the memory that may be taken for it."""


def timings(
    job: Job, data: TrainingData, device: Device, cluster: Cluster, costs: Costs, precisions: Sequence[Precision]
) -> tuple[Timing, ...]:
    """Empty where the model is too large for one device, or fails there: what it takes is then predicted as it is."""
    if _too_large(costs, 1, precisions, cluster):
        return ()
    try:
        return _timings(job, data, device, cluster, costs, precisions)
    except Exception:
        return ()
    finally:
        if device.kind == "cpu":
            pin_to_cores(0, 1, 0)


def _timings(
    job: Job, data: TrainingData, device: Device, cluster: Cluster, costs: Costs, precisions: Sequence[Precision]
) -> tuple[Timing, ...]:
    deferred = defer_init(job.model, job.seed)
    Materializer(deferred.recorder, device.torch_device, master_dtype("fp32")).materialize(deferred.module)
    if isinstance(job.loss, torch.nn.Module):
        job.loss.to(device.torch_device)
    module = deferred.module.train()
    found = []
    for threads in sorted({1, cluster.cores}) if device.kind == "cpu" else [1]:
        if device.kind == "cpu":
            pin_to_cores(0, cluster.cores // threads, threads)
        for precision in precisions:
            seen: dict[int, list[Timing]] = {}
            sizes = [each for each in _samples(job) if not _too_large(costs, each, [precision], cluster)]
            for _ in range(_TURNS):
                for samples in sizes:
                    micro = data.micro(0, samples).to(device.torch_device, master_dtype(precision))
                    timing = Timing(precision, threads, samples, *_time(job, module, micro, precision, device))
                    seen.setdefault(samples, []).append(timing)
                    if _seconds(timing) > _LONG:
                        break  # more samples would take longer still
                if any(_seconds(timing) > _LONG for each in seen.values() for timing in each):
                    break
            # What disturbs a measurement only ever makes it slower.
            found += [min(each, key=_seconds) for each in seen.values()]
    return tuple(found)


def _seconds(timing: Timing) -> float:
    return timing.forward + timing.backward


def _too_large(costs: Costs, samples: int, precisions: Sequence[Precision], cluster: Cluster) -> bool:
    """With weights, gradients and activations."""
    for precision in precisions:
        profile = along_samples(costs.traces[precision], samples)
        if 2 * 4 * profile.parameters + profile.activation_bytes > _ROOM * cluster.memory:
            return True
    return False


def _samples(job: Job) -> list[int]:
    return sorted({max(1, job.global_batch // 8), max(1, job.global_batch // 2)})


def _time(
    job: Job, module: torch.nn.Module, micro: MicroBatch, precision: Precision, device: Device
) -> tuple[float, float]:
    objective = objective_of(job.loss)
    forwards: list[float] = []
    backwards: list[float] = []
    begin = time.perf_counter()
    while len(forwards) <= _LEAST or time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        with autocast(precision, device):
            loss = objective(micro.forward(module), micro).sum
        device.wait()
        middle = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        device.wait()
        # Gradients are kept, as they are from round to round.
        forwards.append(middle - start)
        backwards.append(time.perf_counter() - middle)
        if time.perf_counter() - begin > _LONG:
            break
    enough = forwards[1:], backwards[1:]
    return (statistics.median(enough[0]), statistics.median(enough[1])) if enough[0] else (forwards[0], backwards[0])
