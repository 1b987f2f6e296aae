"""The fingerprint of a job changes, in the right field, if and only if its loss curve does."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.model.deferred import defer_init
from onecurve.runtime.fingerprint import fingerprint


class Points:
    def __init__(self, samples: int = 64) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(3), torch.zeros(1)


def own_loss(output: Tensor, target: Tensor, power: int = 2) -> Tensor:
    return (output - target).abs().pow(power).mean(1)


def own_optimizer(named_parameters: Any, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=lr)


def needs_values(named_parameters: Any) -> torch.optim.Optimizer:
    parameters = [parameter for _, parameter in named_parameters]
    return torch.optim.SGD(parameters, lr=parameters[0].detach().norm().item())


def own_schedule(step: int, steps: int) -> float:
    return 1 - step / steps


def fingerprint_of(**changes: Any) -> dict[str, str]:
    settings = {
        "model": lambda: nn.Linear(3, 1),
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.05),
        "global_batch": 8,
        "steps": 4,
    }
    job = oc.Job(**(settings | changes))
    return fingerprint(job, defer_init(job.model, job.seed).module, open_data(job))


def with_frozen_bias(model: nn.Linear) -> nn.Linear:
    model.bias.requires_grad_(False)
    return model


class Bottleneck(nn.Linear):
    """Another class with the same parameters."""


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("model", {"model": lambda: nn.Linear(3, 1, bias=False)}),
        ("model", {"model": lambda: with_frozen_bias(nn.Linear(3, 1))}),
        ("model", {"model": lambda: Bottleneck(3, 1)}),
        ("loss", {"loss": own_loss}),
        ("data", {"data": lambda: Points(65)}),
        ("lr", {"optimizer": oc.AdamW(lr=0.06)}),
        ("optimizer", {"optimizer": oc.AdamW(lr=0.05, weight_decay=0.1)}),
        ("optimizer", {"optimizer": oc.AdamW(lr=0.05, groups={"bias": {"weight_decay": 0.0}})}),
        ("optimizer", {"optimizer": oc.SGD(lr=0.05)}),
        ("optimizer", {"optimizer": partial(own_optimizer, lr=0.05)}),
        ("schedule", {"schedule": oc.cosine(warmup=2)}),
        ("schedule", {"schedule": own_schedule}),
        ("global_batch", {"global_batch": 16}),
        ("steps", {"steps": 5}),
        ("clip", {"clip": 1.0}),
        ("batch_norm", {"batch_norm": "local"}),
        ("seed", {"seed": 1}),
    ],
)
def test_a_change_of_the_job_changes_one_field(field: str, change: dict[str, Any]) -> None:
    saved, now = fingerprint_of(), fingerprint_of(**change)
    assert [name for name in now if now[name] != saved[name]] == [field]


def test_a_job_has_the_same_fingerprint_every_time() -> None:
    assert fingerprint_of() == fingerprint_of()


@pytest.mark.parametrize(
    "change",
    [
        {"evaluate": oc.Evaluate(Points, every=1)},
        {"metrics": {"error": own_loss}},
        {"save": None},
        {"model": lambda: nn.Linear(3, 1)},
    ],
)
def test_what_does_not_change_the_loss_curve_may_change(change: dict[str, Any]) -> None:
    assert fingerprint_of(**change) == fingerprint_of()


def test_epochs_are_compared_as_epochs_because_their_number_of_steps_depends_on_the_batch() -> None:
    assert fingerprint_of(steps=None, epochs=2)["steps"] == "2 epochs"
    assert fingerprint_of(steps=None, epochs=2.0)["steps"] == "2 epochs"
    assert fingerprint_of(steps=None, epochs=1)["steps"] == "1 epoch"
    assert fingerprint_of(steps=None, epochs=0.125)["steps"] == "0.125 epochs"


@pytest.mark.parametrize(
    ("optimizer", "lr"),
    [
        (oc.AdamW(lr=0.05), "0.05"),
        (oc.Optimizer(torch.optim.RMSprop, {}), "0.01"),  # the default of its constructor
        (oc.SGD(lr=0.1, groups={"bias": {"lr": 1}}), "0.1, 1.0"),
        (oc.SGD(lr=0.1, groups={"bias": {"momentum": 0.5}}), "0.1"),
        (own_optimizer, "0.1"),
        (needs_values, "not known"),
    ],
)
def test_the_learning_rate_of_any_optimizer_is_known_unless_it_needs_real_parameters(optimizer: Any, lr: str) -> None:
    assert fingerprint_of(optimizer=optimizer)["lr"] == lr


def test_the_learning_rates_of_several_optimizers_are_named_by_child() -> None:
    model = lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))  # noqa: E731
    optimizers = {"0": oc.SGD(lr=0.1), "1": oc.AdamW(lr=0.2)}
    assert fingerprint_of(model=model, optimizer=optimizers)["lr"] == "0: 0.1, 1: 0.2"


def test_the_learning_rate_of_rprop_is_part_of_the_optimizer_because_it_matters_in_the_first_step_only() -> None:
    old, new = (fingerprint_of(optimizer=oc.Optimizer(torch.optim.Rprop, {"lr": lr})) for lr in (0.1, 0.2))
    assert old["optimizer"] != new["optimizer"]


def test_a_partial_function_has_the_name_of_its_function() -> None:
    assert fingerprint_of(loss=partial(own_loss, power=3))["loss"] == "own_loss"


def test_optimizers_are_shown_by_child() -> None:
    model = lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))  # noqa: E731
    optimizers = {"0": oc.SGD(lr=0.1), "1": own_optimizer}
    assert fingerprint_of(model=model, optimizer=optimizers)["optimizer"].startswith("0: SGD(momentum=0")
    assert fingerprint_of(model=model, optimizer=optimizers)["optimizer"].endswith(", 1: own_optimizer")
