"""An optimizer must train exactly the parameters that it is given."""

from typing import Any

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.optimizer_factory import build_optimizer

MODEL = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))


def test_a_function_gets_the_named_parameters() -> None:
    built = build_optimizer(lambda named: torch.optim.SGD([p for _, p in named], lr=0.1), MODEL.named_parameters())
    assert len(built.param_groups[0]["params"]) == 4


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        (lambda _: torch.optim.SGD(nn.Linear(2, 3).parameters(), lr=0.1), "an optimizer of other tensors"),
        (lambda named: torch.optim.SGD([p for n, p in named if n[0] == "1"], lr=0.1), "leaves out 2 of 4 parameters"),
        (lambda _: oc.AdamW(lr=0.1), "give that itself: optimizer=oc.AdamW"),
        (lambda _: None, "returned NoneType"),
    ],
)
def test_an_optimizer_that_trains_something_else_is_refused(factory: Any, expected: str) -> None:
    with pytest.raises(OnecurveError, match=expected):
        build_optimizer(factory, MODEL.named_parameters())


def test_what_a_function_raises_is_an_error_of_the_user() -> None:
    with pytest.raises(UserCodeError, match="raised ValueError: Invalid learning rate"):
        build_optimizer(oc.AdamW(lr=-1.0), MODEL.named_parameters())


def test_groups_of_torch_are_refused() -> None:
    with pytest.raises(OnecurveError, match="groups must be a dict"):
        oc.AdamW(lr=0.1, groups=[{"weight_decay": 0.0}])  # type: ignore[arg-type]
