"""A job's model timed on this device, forward and backward: a few micro-batches, nothing is trained."""

import statistics
import time
from collections.abc import Sequence

import torch

from onecurve.apply.blueprint import draw
from onecurve.apply.precision import computing, kept_dtype
from onecurve.apply.weights import Weights
from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import Timing
from onecurve.describe.plan import Precision
from onecurve.device.cores import settle_on_cores
from onecurve.device.device import Device
from onecurve.job.batch import Micro
from onecurve.job.job import Job
from onecurve.train.objective import objective_of
from onecurve.verbs.data import Data

_LEAST, _SECONDS = 3, 0.5
"""Times that a micro-batch is run, and for how long."""
_ROOM = 0.25
"""The part of the memory that weights may take, for there are gradients and activations too."""


def timings(
    job: Job, data: Data, device: Device, cluster: Cluster, precisions: Sequence[Precision]
) -> tuple[Timing, ...]:
    """Empty where the model is too large for one device."""
    blueprint = draw(job.model, job.seed)
    if blueprint.parameter_bytes > _ROOM * cluster.memory:
        return ()
    weights = Weights(blueprint.tape, device.torch_device, kept_dtype("fp32"))
    module = blueprint.module
    weights.realize(module)
    if isinstance(job.loss, torch.nn.Module):
        job.loss.to(device.torch_device)
    module.train()
    found = []
    for threads in sorted({1, cluster.cores}) if device.kind == "cpu" else [1]:
        if device.kind == "cpu":
            settle_on_cores(0, cluster.cores // threads, threads)
        for precision in precisions:
            for samples in _samples(job):
                micro = data.micro(0, samples).to(device.torch_device, kept_dtype(precision))
                forward, backward = _time(job, module, micro, precision, device)
                found.append(Timing(precision, threads, samples, forward, backward))
    if device.kind == "cpu":
        settle_on_cores(0, 1, 0)
    return tuple(found)


def _samples(job: Job) -> list[int]:
    return sorted({max(1, job.global_batch // 8), max(1, job.global_batch // 2)})


def _time(job: Job, module: torch.nn.Module, micro: Micro, precision: Precision, device: Device) -> tuple[float, float]:
    objective = objective_of(job.loss)
    forwards: list[float] = []
    backwards: list[float] = []
    begin = time.perf_counter()
    while len(forwards) <= _LEAST or time.perf_counter() - begin < _SECONDS:
        start = time.perf_counter()
        with computing(precision, device):
            loss = objective(micro.forward(module), micro).sum
        device.wait()
        middle = time.perf_counter()
        loss.backward()  # type: ignore[no-untyped-call]
        device.wait()
        forwards.append(middle - start)
        backwards.append(time.perf_counter() - middle)
        # Gradients are kept, as they are from round to round.
    return statistics.median(forwards[1:]), statistics.median(backwards[1:])
