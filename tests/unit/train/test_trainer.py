"""Training on one rank: gradient accumulation, skipped steps, precision, evaluation and error messages."""

import math

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import onecurve as oc
from onecurve.describe.errors import UserCodeError
from onecurve.describe.record import EvaluationRecord
from onecurve.job.batch import MicroBatch
from onecurve.train.early_stopping import BestTracker


class Points:
    def __init__(self, bad: int | None = None) -> None:
        self.x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
        if bad is not None:
            self.x[bad] = math.nan

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int):
        return self.x[index], self.x[index].sum()[None]


def make_job(bad: int | None = None, **changes) -> oc.Job:
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


def train(job: oc.Job, plan: str = "auto", skips_on_device: bool = False):
    with oc.prepare(job, plan) as run:
        run._trainer.update.skips_on_device = skips_on_device
        reports = [run.step(batch) for batch in run]
        return [report.record() for report in reports], [p.detach().clone() for p in run.model.parameters()]


def test_gradient_accumulation_does_not_change_the_result() -> None:
    one_round, four_rounds = train(make_job(), "mb8"), train(make_job(), "mb2×4")
    assert [r.loss for r in one_round[0]] == pytest.approx([r.loss for r in four_rounds[0]], rel=1e-5)
    for a, b in zip(one_round[1], four_rounds[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("skips_on_device", [False, True], ids=["skipped by the host", "skipped on the device"])
def test_a_non_finite_step_is_skipped_and_its_samples_are_consumed(skips_on_device: bool) -> None:
    records, weights = train(make_job(bad=11, epochs=None), skips_on_device=skips_on_device)
    skipped = [record for record in records if record.skipped]
    assert len(skipped) == 1  # 64 samples in 8 steps: sample 11 occurs once
    assert [record.samples for record in records] == [8 * step for step in range(1, 9)]
    assert all(weight.isfinite().all() for weight in weights)
    assert math.isnan(skipped[0].loss)


@pytest.mark.parametrize("skips_on_device", [False, True], ids=["skipped by the host", "skipped on the device"])
def test_a_skipped_step_does_not_change_batch_norm_statistics(skips_on_device: bool) -> None:
    job = make_job(bad=11, model=lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1)))
    with oc.prepare(job) as run:
        run._trainer.update.skips_on_device = skips_on_device
        reports = [run.step(batch) for batch in run]
        assert sum(report.record().skipped for report in reports) == 1
        assert all(buffer.isfinite().all() for buffer in run.model.buffers())
        assert run.model[1].num_batches_tracked == 7


def test_a_skipped_step_does_not_change_a_running_mean() -> None:
    class Center(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.mean = (0.9 * self.mean + 0.1 * x.mean(0)).detach()
            return super().forward(x - self.mean)

    with oc.prepare(make_job(bad=11, model=Center)) as run:
        assert sum(run.step(batch).record().skipped for batch in run) == 1
        assert run.model.mean.isfinite().all()


def test_a_model_in_evaluation_mode_is_switched_back_to_training_mode() -> None:
    seen = []

    class RecordsMode(nn.Linear):
        def forward(self, x):
            seen.append(self.training)
            return super().forward(x)

    with oc.prepare(make_job(model=lambda: RecordsMode(3, 1))) as run:
        for batch in run:
            seen.clear()
            run.step(batch)
            assert seen == [True]
            run.model.eval()


def test_a_buffer_that_forward_replaces_is_saved_with_its_new_value(tmp_path) -> None:
    class Counts(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            if self.training:
                self.calls = self.calls + 1
            return super().forward(x)

    with oc.prepare(make_job(model=Counts)) as run:
        for batch in run:
            run.step(batch)
        run.save(tmp_path / "weights.safetensors")
    assert load_file(tmp_path / "weights.safetensors")["calls"] == 8


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_mixed_precision_trains_with_float32_master_weights(precision: str) -> None:
    records, weights = train(make_job(steps=60), f"mb8 {precision}")
    assert records[-1].loss < records[0].loss / 3
    assert all(weight.dtype == torch.float32 for weight in weights)
    assert records[0].loss_scale == (2.0**16 if precision == "fp16" else 1.0)


def test_an_fp16_overflow_skips_the_step_and_halves_the_loss_scale() -> None:
    def huge(output, target):
        return (output - target).square().mean(1) * 10  # times the loss scale of 2^16 it overflows fp16

    records, weights = train(make_job(loss=huge, steps=20), "mb8 fp16")
    assert records[0].skipped
    assert not records[-1].skipped
    assert records[1].loss_scale == records[0].loss_scale / 2
    assert all(weight.isfinite().all() for weight in weights)


def test_skipping_on_the_device_gives_the_same_weights() -> None:
    on_host, on_device = train(make_job(bad=11)), train(make_job(bad=11), skips_on_device=True)
    for a, b in zip(on_host[1], on_device[1], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_seconds_are_recorded_by_cause() -> None:
    records, _ = train(make_job())
    causes = {"data", "copy", "forward", "backward", "update", "sync", "evaluation", "checkpoint", "other"}
    assert all(set(r.seconds) == causes for r in records)
    assert all(seconds >= -1e-6 for r in records for seconds in r.seconds.values())


def test_the_schedule_scales_the_learning_rate_of_every_group() -> None:
    job = make_job(optimizer=oc.SGD(lr=1.0, groups={"*.bias": {"lr": 2.0}}), schedule=oc.linear(warmup=2), clip=None)
    with oc.prepare(job) as run:
        rates = []
        for batch in run:
            run.step(batch)
            rates.append([group["lr"] for group in run._trainer.update.optimizer.param_groups])
    assert rates[0] == [0.5, 1.0]
    assert rates[1] == [1.0, 2.0]
    assert rates[-1] == pytest.approx([0.0, 0.0])


def test_evaluation_counts_each_sample_once_and_metrics_are_weighted() -> None:
    def far_off(output, target) -> oc.Weighted:
        return oc.Weighted((output - target).abs().gt(1.0).sum(), target.numel())

    job = make_job(evaluate=oc.Evaluate(Points, every=100), metrics={"far": far_off}, global_batch=24)
    with oc.prepare(job, "mb24") as run:
        record = run.evaluate()
        module = run.model.eval().cpu()
    points = Points()
    error = module(points.x) - points.x.sum(1, keepdim=True)
    assert record.samples == 64
    assert record.loss == pytest.approx(error.square().mean().item(), rel=1e-5)
    assert record.metrics["far"] == pytest.approx(error.abs().gt(1.0).double().mean().item())


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (lambda output, target: (output - target).square().mean().sqrt(), "metric 'm': it returned a scalar"),
        (lambda output, _: output.nope, "metric 'm': it raised AttributeError"),
    ],
)
def test_an_invalid_metric_is_reported_before_training(metric, message: str) -> None:
    with pytest.raises(oc.OnecurveError, match=message):
        oc.prepare(make_job(metrics={"m": metric}))


def test_auc_matches_the_count_over_all_pairs() -> None:
    torch.manual_seed(0)
    logits, clicked = torch.randn(500), (torch.rand(500) < 0.3).float()
    logits += clicked
    metric = oc.metric.auc()
    total = sum(metric.sums(logits[part], clicked[part]) for part in (slice(0, 100), slice(100, 500)))
    positive, negative = logits[clicked > 0], logits[clicked == 0]
    exact = (positive[:, None] > negative[None]).double().mean().item()
    assert metric.finish(total) == pytest.approx(exact, abs=1e-3)


def test_patience_runs_out_without_an_improvement() -> None:
    tracker = BestTracker(oc.Evaluate(Points, every=1, watch="auc", better="higher", patience=2))
    for step, value in enumerate([0.5, 0.7, 0.6, 0.65]):
        assert not tracker.out_of_patience
        tracker.add(EvaluationRecord(step, 1.0, {"auc": value}, 1, 0.0))
    assert tracker.out_of_patience
    assert (tracker.best.step, tracker.best.value) == (1, 0.7)


def test_an_error_in_forward_is_a_user_code_error_that_names_the_input() -> None:
    class Wrong(nn.Linear):
        def forward(self, x):
            return super().forward(x.view(7, -1))

    with pytest.raises(UserCodeError, match=r"model: forward raised RuntimeError.*torch.float32 \[8, 3\]"):
        oc.prepare(make_job(model=lambda: Wrong(3, 1)))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    def frozen() -> nn.Module:
        return nn.Linear(3, 1).requires_grad_(False)

    with pytest.raises(oc.OnecurveError, match="no parameter to train"):
        oc.prepare(make_job(model=frozen))


def test_dict_inputs_become_keyword_arguments_and_tuples_positional_ones() -> None:
    class Takes(nn.Module):
        def forward(self, a, b=2):
            return a * b

    assert MicroBatch({"a": torch.tensor(3), "b": 4}, None, 1).forward(Takes()) == 12
    assert MicroBatch((torch.tensor(3), 5), None, 1).forward(Takes()) == 15


class Noisy(nn.Linear):
    """Draws random numbers in evaluation mode too, like a variational autoencoder."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + torch.randn(len(x), 1)


def test_every_evaluation_draws_the_same_random_numbers() -> None:
    job = make_job(model=lambda: Noisy(3, 1), evaluate=oc.Evaluate(Points, every=4))
    with oc.prepare(job) as run:
        torch.manual_seed(1)
        first = run.evaluate()
        torch.manual_seed(2)
        assert run.evaluate().loss == first.loss
