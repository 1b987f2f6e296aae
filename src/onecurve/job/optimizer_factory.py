"""Calls a job's optimizer factory, and refuses an optimizer that would train something else."""

import inspect
from collections.abc import Sequence
from typing import NoReturn

import torch
from torch import nn

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.seed import mix
from onecurve.device.rng import seeded
from onecurve.job.optimizer import NamedParameters, Optimizer, OptimizerFactory


def build_optimizer(factory: OptimizerFactory, named_parameters: NamedParameters) -> torch.optim.Optimizer:
    """Call a job's factory. It must return an optimizer of exactly the parameters that it is given.

    What it draws does not depend on the job's seed: only on the order of its own draws.
    """
    named = list(named_parameters)
    try:
        with seeded(mix(0)):
            optimizer = factory(named)
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"Job: optimizer(named_parameters) raised {type(error).__name__}: {error}") from error
    if isinstance(optimizer, Optimizer):
        kind = optimizer.kind.__name__
        raise OnecurveError(
            f"Job: optimizer is a function that returns a onecurve.Optimizer; give that itself: optimizer=oc.{kind}(…)"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise OnecurveError(
            f"Job: optimizer(named_parameters) returned {type(optimizer).__name__}; it must return a "
            "torch.optim.Optimizer"
        )
    _refuse_other_parameters(optimizer, named)
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        refuse_closure(optimizer)
    return optimizer


def refuse_closure(optimizer: torch.optim.Optimizer) -> NoReturn:
    """Refuse an optimizer that needs a closure: onecurve calls `step()` without one."""
    raise OnecurveError(
        f"Job: the optimizer {type(optimizer).__name__} evaluates the loss several times in a step (its step() needs a "
        "closure), which a step that is split over ranks and rounds does not offer; use another optimizer"
    ) from None


def _refuse_other_parameters(optimizer: torch.optim.Optimizer, named: Sequence[tuple[str, nn.Parameter]]) -> None:
    """Tensors of another module would be trained in vain, and a parameter that is left out would silently stay."""
    members = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if members - {id(parameter) for _, parameter in named}:
        raise OnecurveError(
            "Job: optimizer(named_parameters) returned an optimizer of other tensors than the parameters that it was "
            "given; build it from its argument: lambda named: torch.optim.AdamW([p for _, p in named], lr=…)"
        )
    if missing := [name for name, parameter in named if id(parameter) not in members]:
        raise OnecurveError(
            f"Job: optimizer(named_parameters) leaves out {len(missing)} of {len(named)} parameters, first "
            f"{missing[0]!r}; to train only a part of the model, use Job(freeze='PATTERN')"
        )
