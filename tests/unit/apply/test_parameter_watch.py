"""What a forward does to parameters is refused at the end of the step, if the plan cannot carry it."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from onecurve.apply.parameter_watch import ParameterWatch
from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan


def freeze(model: nn.Linear) -> None:
    model.bias.requires_grad_(False)


def add(model: nn.Linear) -> None:
    model.extra = nn.Linear(2, 2)


def register(model: nn.Linear) -> None:
    model.scale = nn.Parameter(torch.ones(2))


@torch.no_grad()
def write(model: nn.Linear) -> None:
    model.weight.mul_(1.0)


def assign(model: nn.Linear) -> None:
    model.weight.data = model.weight.data.clone()


def step(change: Callable[[nn.Linear], None], plan: str, traced: ChangedBuffers = ChangedBuffers()) -> None:  # noqa: B008
    model = nn.Linear(2, 2)
    watch = ParameterWatch(model, Plan.parse(plan), traced, None)
    watch.begin_step(model.named_parameters())
    watch.end_step()
    watch.begin_step(model.named_parameters())
    change(model)
    watch.end_step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (freeze, "set requires_grad of parameter 'bias' to False"),
        (add, "made the module 'extra'; make it in the constructor"),
        (register, "made, replaced or removed a parameter"),
    ],
)
def test_a_changed_set_of_parameters_is_refused_under_every_plan(
    change: Callable[[nn.Linear], None], message: str
) -> None:
    with pytest.raises(OnecurveError, match=message):
        step(change, "mb8")


@pytest.mark.parametrize("change", [write, assign])
def test_a_write_that_the_trace_did_not_show_needs_one_rank_and_one_round(change: Callable[[nn.Linear], None]) -> None:
    step(change, "mb8")
    for plan in ("mb4×2", "replicate2 mb4", "pipeline2 mb4×2"):
        with pytest.raises(OnecurveError, match=f"plan {plan}.*parameter 'weight', which the trace"):
            step(change, plan)
        step(change, plan, ChangedBuffers(parameters=("weight",)))


def test_a_flag_that_fully_shard_resets_is_compared_after_the_forward() -> None:
    """fully_shard sets `requires_grad` of gathered parameters anew before backward."""
    module = nn.Linear(2, 2)
    module.bias.requires_grad_(False)
    watch = ParameterWatch(module, Plan.parse("shard2 mb4"), ChangedBuffers(), None)
    watch.begin_step(module.named_parameters())
    watch.end_forward()
    module.bias.requires_grad_(True)
    with pytest.raises(OnecurveError, match="set requires_grad of parameter 'bias' to True"):
        watch.end_forward()
    module.bias.requires_grad_(False)
    watch.end_step()
