"""A run continues only with the job that it was started with; every field that differs is named."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError
from onecurve.model.deferred import defer_init
from onecurve.runtime.fingerprint import fingerprint, refuse_changed


class Points:
    def __init__(self, samples: int = 64) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(3), torch.zeros(1)


def own_loss(output: Tensor, target: Tensor, power: int = 2) -> Tensor:
    return (output - target).abs().pow(power).mean(1)


def own_optimizer(named_parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([parameter for _, parameter in named_parameters], lr=0.1)


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


class Bottleneck(nn.Linear):
    """Another class with the same parameters."""


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("model", {"model": lambda: nn.Linear(3, 1, bias=False)}),
        ("model", {"model": lambda: nn.Linear(3, 1).requires_grad_(False)}),
        ("model", {"model": lambda: Bottleneck(3, 1)}),
        ("loss", {"loss": own_loss}),
        ("data", {"data": lambda: Points(65)}),
        ("optimizer", {"optimizer": oc.AdamW(lr=0.06)}),
        ("optimizer", {"optimizer": oc.AdamW(lr=0.05, groups={"bias": {"weight_decay": 0.0}})}),
        ("optimizer", {"optimizer": oc.SGD(lr=0.05)}),
        ("optimizer", {"optimizer": own_optimizer}),
        ("schedule", {"schedule": oc.cosine(warmup=2)}),
        ("schedule", {"schedule": own_schedule}),
        ("global_batch", {"global_batch": 16}),
        ("steps", {"steps": 5}),
        ("clip", {"clip": 1.0}),
        ("batch_norm", {"batch_norm": "local"}),
        ("seed", {"seed": 1}),
    ],
)
def test_a_changed_field_is_named_with_both_values(field: str, change: dict[str, Any]) -> None:
    saved, now = fingerprint_of(), fingerprint_of(**change)
    assert [name for name in now if now[name] != saved[name]] == [field]
    with pytest.raises(OnecurveError) as caught:
        refuse_changed(saved, now, "runs/a/step-3")
    message = str(caught.value)
    assert message.startswith(f"runs/a/step-3: it was saved by a job that differs in {field} (")
    assert saved[field] in message
    assert now[field] in message
    assert "--fresh" in message
    assert "--out" in message


def test_the_same_job_is_accepted() -> None:
    refuse_changed(fingerprint_of(), fingerprint_of(), "runs/a")


def test_several_changed_fields_are_all_named() -> None:
    with pytest.raises(OnecurveError, match="differs in steps, clip, seed "):
        refuse_changed(fingerprint_of(), fingerprint_of(steps=5, clip=0.5, seed=3), "runs/a")


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


def test_a_field_that_an_older_checkpoint_lacks_is_called_not_known() -> None:
    saved = fingerprint_of()
    del saved["batch_norm"]
    with pytest.raises(OnecurveError, match="batch_norm was not known, is sync"):
        refuse_changed(saved, fingerprint_of(), "runs/a")


def test_epochs_and_the_same_number_of_steps_are_equal() -> None:
    assert fingerprint_of(steps=None, epochs=0.5) == fingerprint_of(steps=4)


def test_a_partial_function_has_the_name_of_its_function() -> None:
    assert fingerprint_of(loss=partial(own_loss, power=3))["loss"] == "own_loss"


def test_optimizers_are_shown_by_child() -> None:
    model = lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))  # noqa: E731
    optimizers = {"0": oc.SGD(lr=0.1), "1": own_optimizer}
    assert fingerprint_of(model=model, optimizer=optimizers)["optimizer"].startswith("0: SGD(lr=0.1")
    assert fingerprint_of(model=model, optimizer=optimizers)["optimizer"].endswith(", 1: own_optimizer")
