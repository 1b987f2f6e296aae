"""The profile of a job's model, and what its optimizers need."""

import logging

import torch
from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Precision
from onecurve.describe.profile import Profile
from onecurve.describe.seed import mix
from onecurve.device.device import local_cpu
from onecurve.device.precision import autocast
from onecurve.device.rng import seeded
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer, OptimizerFactory, refuse_if_not_shardable
from onecurve.measure.profiler import Forward, profile
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.planner.traced_model import TracedModel

_log = logging.getLogger(__name__)


def profile_of(traced: TracedModel, samples: int, precision: Precision = "fp32") -> Profile:
    """Trace the cost of a micro-batch of `samples` samples."""
    micro = traced.micro(samples)
    forward = Forward(traced.mode, samples, lambda: micro.forward(traced.model), lambda: traced.loss(micro))
    with DataDependentFallback(), autocast(precision, local_cpu()):
        return profile(traced.model, traced.blocks, forward, optimizer_tensors(traced.job))


def optimizer_tensors(job: Job) -> int:
    """Return the number of optimizer state tensors per parameter, as far as it is known before the first step. The
    average of a parameter is one of them."""
    return (job.ema is not None) + min(
        factory.state_tensors if isinstance(factory, Optimizer) else _count_state_tensors(factory)
        for factory in job.optimizers.values()
    )


def needs_full_parameters(job: Job) -> bool:
    """True if an optimizer may look at more than single elements, so that parameters must not be split."""
    try:
        for factory in job.optimizers.values():
            refuse_if_not_shardable(_build_on_two_elements(factory), "")
    except OnecurveError:
        return True
    except Exception:  # a user's factory may need the real parameters; then nothing is known about its optimizer
        _log.info("the optimizer cannot be built on a parameter of two elements", exc_info=True)
        return True
    return False


def _count_state_tensors(factory: OptimizerFactory) -> int:
    """Count the state tensors of a user's own optimizer after one step on a tiny parameter; 0 if that fails."""
    try:
        optimizer = _build_on_two_elements(factory)
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        state = optimizer.state[parameter].values()
        return sum(1 for value in state if isinstance(value, Tensor) and value.numel() == 2)
    except Exception:  # user code: its memory is then left out of the estimate
        _log.info("the optimizer's state cannot be counted", exc_info=True)
        return 0


def _build_on_two_elements(factory: OptimizerFactory) -> torch.optim.Optimizer:
    with seeded(mix(0)):
        return factory([("weight", nn.Parameter(torch.zeros(2)))])
