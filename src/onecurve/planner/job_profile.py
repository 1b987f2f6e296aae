"""The profile of a job's model."""

import torch
from torch import Tensor, nn

from onecurve.describe.plan import Precision
from onecurve.describe.profile import Profile
from onecurve.device.device import local_cpu
from onecurve.device.precision import autocast
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer, OptimizerFactory, refuse_if_whole_needed
from onecurve.measure.profiler import Forward, profile
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.planner.traced_model import TracedModel


def profile_of(traced: TracedModel, samples: int, precision: Precision = "fp32") -> Profile:
    """What a micro-batch of so many samples costs."""
    micro = traced.micro(samples)
    forward = Forward(traced.mode, samples, lambda: micro.forward(traced.model), lambda: traced.loss(micro))
    with DataDependentFallback(), autocast(precision, local_cpu()):
        return profile(traced.model, traced.blocks, forward, optimizer_tensors(traced.job))


def optimizer_tensors(job: Job) -> int:
    """Tensors of optimizer state per parameter, as far as it is known before the first step."""
    return min(
        each.state_tensors if isinstance(each, Optimizer) else _tried_tensors(each) for each in job.optimizers.values()
    )


def needs_whole(job: Job) -> bool:
    """Whether an optimizer may look at whole parameters, so that no rank may have parts of them."""
    try:
        for each in job.optimizers.values():
            refuse_if_whole_needed(_tried(each), "")
    except Exception:
        return True
    return False


def _tried_tensors(factory: OptimizerFactory) -> int:
    """Of somebody else's optimizer: what it keeps after a step on a parameter of two elements; 0 where that fails."""
    try:
        optimizer = _tried(factory)
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        return sum(1 for each in optimizer.state[parameter].values() if isinstance(each, Tensor) and each.numel() == 2)
    except Exception:
        return 0


def _tried(factory: OptimizerFactory) -> torch.optim.Optimizer:
    return factory([("weight", nn.Parameter(torch.zeros(2)))])
