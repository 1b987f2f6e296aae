"""Tests the job's loss and metrics on this host before anything is planned, as every run does before it trains."""

from functools import partial
from typing import Any

import torch
from torch import nn

from onecurve.data.training_data import TrainingData
from onecurve.describe.costs import CostTrace
from onecurve.describe.errors import UserCodeError
from onecurve.describe.units import bytes_text
from onecurve.device.device import Device, local_cluster
from onecurve.estimate.scaling import along_samples
from onecurve.job.batch import MicroBatch
from onecurve.job.evaluation_metrics import metrics_of
from onecurve.job.job import Job
from onecurve.job.loss_parameters import refuse_other_parameters
from onecurve.job.loss_trial import TRIAL_SAMPLES, LossTrial
from onecurve.job.metric_trial import refuse_unsplittable_metrics
from onecurve.job.whole_batch import splittable
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.model.unchanged import functions_kept, unchanged

_MAX_FLOPS = 1e12
"""Work that the test may take; some 5 to 20 seconds on a CPU."""
_MEMORY_FRACTION = 0.4
"""Fraction of this host's memory that the tested model may take."""
_FORWARDS = 8
"""Upper limit of the test's forward passes, in micro-batches of full size."""
_LATER = "onecurve run tests it before it trains"


class _ForwardFailedError(Exception):
    """The model does not run on this host. It may still run on the cluster that is planned for."""


def refuse_unsplittable_loss(job: Job, data: TrainingData, trace: CostTrace, device: Device) -> str:
    """Raise the OnecurveError with which a run would refuse the loss; return what could not be tested.

    `trace`: costs of the model in float32 or less, from which it is known whether this host can run it.
    """
    samples = min(job.global_batch, TRIAL_SAMPLES)
    while samples > 3 and _flops(trace, samples) > _MAX_FLOPS:
        samples //= 2
    reason = why_too_large(trace, samples)
    if reason:
        return f"the loss was not tested ({reason}); {_LATER}"
    try:
        return _refuse(job, data, samples, device)
    except _ForwardFailedError as error:
        return f"the loss was not tested, because the model does not run on this host ({error}); {_LATER}"


def _refuse(job: Job, data: TrainingData, samples: int, device: Device) -> str:
    deferred = defer_init(job.model, job.seed)
    model = deferred.module.eval()
    Materializer(deferred.recorder, device.torch_device, torch.float32).materialize(model)
    if isinstance(job.loss, nn.Module):
        job.loss.to(device.torch_device)

    def read(begin: int, end: int, copies: int) -> MicroBatch:
        return data.trial_micro(begin, end, copies).to(device.torch_device, torch.float32)

    def infer(micro: MicroBatch) -> Any:
        try:
            return micro.infer(model)
        except (UserCodeError, RuntimeError) as error:
            raise _ForwardFailedError(str(error)) from error

    functions = job.loss, *job.metrics.values()
    with unchanged(model, *functions):
        trial = LossTrial(infer=infer, read=read, kept_state=partial(functions_kept, *functions, model=model))
        first = read(0, samples, 1)
        with trial.kept_state():
            refuse_other_parameters(job.loss, infer(first), first, model.parameters())
        note = trial.refuse_unsplittable(splittable(job.loss), first)
        of_metrics = refuse_unsplittable_metrics(trial, metrics_of(job.metrics), first)
        return " ".join(filter(None, [note, of_metrics]))


def _flops(trace: CostTrace, samples: int) -> float:
    return _FORWARDS * along_samples(trace, samples).flops / 3  # backward takes twice as many as forward


def why_too_large(trace: CostTrace, samples: int) -> str:
    """Say why the model is too large to be run here; empty if it is not."""
    profile, memory = along_samples(trace, samples), local_cluster().memory
    needed = 4 * profile.parameters + profile.activation_bytes
    if needed > _MEMORY_FRACTION * memory:
        return f"the model needs {bytes_text(needed)} for {samples} samples, and this host has {bytes_text(memory)}"
    if _flops(trace, samples) > _MAX_FLOPS:
        return f"it takes {_flops(trace, samples):.1g} floating-point operations, the limit is {_MAX_FLOPS:.0g}"
    return ""
