"""Which one-device runs a plan is compared with, and how many perturbed ones."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.plan import Plan
from onecurve.device.device import local_cpu
from onecurve.device.world import World
from onecurve.planner.completion import PlanCompleter
from onecurve.verbs.plan_checker import PlanChecker
from onecurve.verbs.references import Variant

PLAN = Plan.parse("replicate2 mb(3,1)×2 fp64")


@pytest.mark.parametrize(
    ("loss", "variant"),
    [
        (oc.loss.hugging_face, Variant(1, None)),
        (oc.loss.hugging_face_local_auxiliary, Variant(2, ((0, 3), (3, 4)))),
    ],
)
def test_a_loss_per_micro_batch_is_compared_with_a_device_that_uses_the_same_micro_batches(
    loss: Any, variant: Variant, tmp_path: Path
) -> None:
    checker = make_checker(tmp_path, ChangedBuffers(), loss)
    assert checker.references.variants([PLAN]) == [variant]


@pytest.mark.parametrize(
    ("changed", "variant"),
    [
        (ChangedBuffers(data_independent=("u",)), Variant(2, None)),
        (ChangedBuffers(data_dependent=("mean",)), Variant(2, ((0, 3), (3, 4)))),
    ],
)
def test_a_model_that_changes_buffers_is_compared_with_a_device_that_uses_the_same_rounds(
    changed: ChangedBuffers, variant: Variant, tmp_path: Path
) -> None:
    checker = make_checker(tmp_path, changed)
    assert checker.references.variants([PLAN]) == [variant]
    assert any("once per round" in note for note in checker._buffer_notes([PLAN]))


def make_checker(folder: Path, changed: ChangedBuffers, loss: Any = oc.loss.mse) -> PlanChecker:
    job = oc.Job(
        model=lambda: nn.Linear(3, 1),
        loss=loss,
        data=lambda: [(torch.zeros(3), torch.zeros(1))] * 16,
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=1,
    )
    return PlanChecker(job, open_data(job), local_cpu(), World(), 1, "fp64", folder, changed)


class Centered(nn.Module):
    """The true gradient of `shift` is zero, and Adam follows its rounding error."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.shift = nn.Linear(3, 5), nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x)) + self.shift
        return y - y.mean(1, keepdim=True)


def check_after_a_perturbed_run_that_moved_nothing(folder: Path) -> str:
    samples = torch.randn(16, 3, generator=torch.Generator().manual_seed(0))
    job = oc.Job(
        model=Centered,
        loss=oc.loss.mse,
        data=lambda: [(sample, torch.ones(5)) for sample in samples],
        optimizer=lambda parameters: torch.optim.Adam([p for _, p in parameters], lr=0.1, eps=1e-16),
        global_batch=8,
        steps=1,
    )
    data, plan = open_data(job), Plan.parse("mb1×8 fp64")
    checker = PlanChecker(job, data, local_cpu(), World(), 1, "fp64", folder, ChangedBuffers())
    checker.train_references([plan])
    perturbed = checker.references._file(checker.references.variant(plan), 1)
    content = json.loads(perturbed.read_text())
    content["differences"] = [dict.fromkeys(step, 0.0) for step in content["differences"]]
    perturbed.write_text(json.dumps(content))
    return checker.check(PlanCompleter(job, data).resolve(plan)).outcome


def test_a_weight_that_one_perturbed_run_left_in_place_is_compared_with_more_of_them(tmp_path: Path) -> None:
    assert check_after_a_perturbed_run_that_moved_nothing(tmp_path) == "holds"


def test_more_perturbed_runs_do_not_hide_a_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = torch.optim.Adam.step
    calls: list[object] = []

    def faulty_step(self: torch.optim.Adam, closure: Any = None) -> None:
        calls.append(self)
        step(self, closure)
        if len(calls) == 3:  # after the reference and its perturbed run
            with torch.no_grad():
                self.param_groups[0]["params"][1].add_(1e-7)

    monkeypatch.setattr(torch.optim.Adam, "step", faulty_step)
    assert check_after_a_perturbed_run_that_moved_nothing(tmp_path) == "differs"
