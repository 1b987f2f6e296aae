"""One rank alone: the step against plain PyTorch, the guard, and the guard that is read late."""

import math

import pytest
import torch
from torch import nn

import onecurve as oc
from onecurve.job.batch import Micro
from onecurve.verbs.prepare import Run


class Points:
    def __init__(self, bad: int | None = None) -> None:
        self.x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        if bad is not None:
            self.x[bad] = math.nan

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        return self.x[index], self.x[index].sum()[None]


def job(bad: int | None = None, **changes) -> oc.Job:
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        "loss": oc.loss.mse,
        "data": lambda: Points(bad),
        "optimizer": oc.AdamW(lr=0.05),
        "global_batch": 8,
        "steps": 8,
        "clip": 0.5,
    }
    return oc.Job(**(settings | changes))


def train(made: oc.Job, plan: str = "auto", unread: bool = False):
    with Run(made, plan) as run:
        run.trainer.unread = unread
        reports = [run.step(batch) for batch in run]
        return [report.record() for report in reports], [p.detach().clone() for p in run.module.parameters()]


def test_rounds_do_not_change_the_result() -> None:
    one, four = train(job(), "mb8"), train(job(), "mb2×4")
    assert [r.loss for r in one[0]] == pytest.approx([r.loss for r in four[0]], rel=1e-5)
    for a, b in zip(one[1], four[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("unread", [False, True], ids=["read at once", "read late"])
def test_a_step_that_is_not_finite_is_skipped_and_its_samples_consumed(unread: bool) -> None:
    records, weights = train(job(bad=11, epochs=None), unread=unread)
    skipped = [record for record in records if record.skipped]
    assert len(skipped) == 1  # 64 samples in 8 steps: sample 11 is met once
    assert [record.samples for record in records] == [8 * step for step in range(1, 9)]
    assert all(weight.isfinite().all() for weight in weights)
    assert math.isnan(skipped[0].loss)


def test_reading_late_changes_no_number() -> None:
    at_once, late = train(job(bad=11)), train(job(bad=11), unread=True)
    for a, b in zip(at_once[1], late[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_seconds_add_up() -> None:
    records, _ = train(job())
    assert all(set(r.seconds) == {"data", "rounds", "update", "evaluation", "other"} for r in records)
    assert all(seconds >= -1e-6 for r in records for seconds in r.seconds.values())


def test_the_schedule_sets_the_rate_of_every_group() -> None:
    made = job(optimizer=oc.SGD(lr=1.0, groups={"*.bias": {"lr": 2.0}}), schedule=oc.linear(warmup=2), clip=None)
    with Run(made) as run:
        rates = []
        for batch in run:
            run.step(batch)
            rates.append([group["lr"] for group in run.trainer.optimizer.param_groups])
    assert rates[0] == [0.5, 1.0]
    assert rates[1] == [1.0, 2.0]
    assert rates[-1] == pytest.approx([0.0, 0.0])


def test_evaluation_counts_each_sample_once_and_metrics_are_weighted() -> None:
    def far_off(output, target) -> oc.Weighted:
        return oc.Weighted((output - target).abs().gt(1.0).sum(), target.numel())

    made = job(evaluate=oc.Evaluate(Points, every=100), metrics={"far": far_off}, global_batch=24)
    with Run(made, "mb24") as run:
        record = run.evaluate(0)
        module = run.module.eval()
    points = Points()
    error = module(points.x) - points.x.sum(1, keepdim=True)
    assert record.samples == 64
    assert record.loss == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert record.metrics["far"] == pytest.approx(error.abs().gt(1.0).double().mean().item())


def test_nothing_to_train_is_said() -> None:
    def frozen() -> nn.Module:
        return nn.Linear(3, 1).requires_grad_(False)

    with pytest.raises(oc.OnecurveError, match="no parameter to train"):
        Run(job(model=frozen))


def test_a_dict_input_becomes_keywords() -> None:
    class Takes(nn.Module):
        def forward(self, a, b=2):
            return a * b

    assert Micro({"a": torch.tensor(3), "b": 4}, None, 1).forward(Takes()) == 12
    assert Micro((torch.tensor(3), 5), None, 1).forward(Takes()) == 15
