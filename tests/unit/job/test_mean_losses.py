"""Scalars made by torch's loss functions: the parts of a batch add up to the whole batch, also in their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.job.evaluation_metrics import evaluation_metrics_of
from onecurve.job.job import Loss
from onecurve.job.loss_parameters import refuse_other_parameters
from onecurve.job.loss_trial import LossTrial
from onecurve.job.objective import LossObjective, objective_of

SAMPLES, CLASSES, TOKENS = 24, 5, 6
SPLITS = [(0, 5), (5, 6), (6, 18), (18, 24)]
GENERATOR = torch.Generator().manual_seed(0)
LOGITS = torch.randn(SAMPLES, CLASSES, TOKENS, dtype=torch.float64, generator=GENERATOR)
TARGET = torch.randint(CLASSES - 1, (SAMPLES, TOKENS), generator=GENERATOR)  # the trial never sees class 4 or -100
LATE = TARGET.clone()
LATE[5] = -100  # a micro-batch of its own, without any kept target
LATE[19, 2:] = CLASSES - 1
WEIGHT = torch.tensor([1.0, 0.5, 2.0, 1.0, 9.0], dtype=torch.float64)
ZERO_WEIGHT = torch.tensor([1.0, 1.0, 1.0, 1.0, 0.0], dtype=torch.float64)

Objective = Callable[[Tensor, MicroBatch], Any]


def decided(loss: Loss, target: Tensor = TARGET, logits: Tensor = LOGITS) -> LossObjective:
    """The objective after a trial on a batch that shows neither the ignored targets nor the rare class."""
    objective = objective_of(loss)

    def read(begin: int, end: int, copies: int = 1) -> MicroBatch:
        samples = torch.arange(begin, end).repeat(copies) % SAMPLES
        return MicroBatch(logits[samples], target[samples], len(samples))

    first = read(0, 8)
    trial = LossTrial(infer=lambda micro: micro.inputs, read=read, on_form=objective.set_form)
    trial.refuse_unsplittable(loss, first)
    return objective


def sums(objective: LossObjective, target: Tensor, logits: Tensor, splits: list[tuple[int, int]]) -> tuple[Any, ...]:
    """Loss and gradient of a batch in parts: sums of the parts, divided once by the sum of the counts."""
    leaf = logits.clone().requires_grad_()
    total, count = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for begin, end in splits:
        weighted = objective(leaf[begin:end], MicroBatch(None, target[begin:end], end - begin))
        weighted.sum.backward()
        total, count = total + weighted.sum.detach(), count + weighted.count
    assert leaf.grad is not None
    return total / count, leaf.grad / count


def whole(loss: Loss, target: Tensor, logits: Tensor = LOGITS) -> tuple[Any, ...]:
    leaf = logits.clone().requires_grad_()
    value = loss(leaf, target)
    assert isinstance(value, Tensor)
    value.backward()
    return value.detach(), leaf.grad


def two_heads(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y.clone().view_as(y)) + 0.5 * F.cross_entropy(out.square(), y)


EXACT: dict[str, Loss] = {
    "cross_entropy": F.cross_entropy,
    "module": nn.CrossEntropyLoss(weight=WEIGHT),
    "weight": lambda out, y: F.cross_entropy(out, y, weight=WEIGHT),
    "zero weight": lambda out, y: F.cross_entropy(out, torch.where(y < 0, 4, y), weight=ZERO_WEIGHT),
    "smoothed": lambda out, y: F.cross_entropy(out, y, weight=WEIGHT, label_smoothing=0.1),
    "an ignored class": lambda out, y: F.cross_entropy(out, y.clamp(min=0), ignore_index=0),
    "positions": lambda out, y: F.cross_entropy(out.transpose(1, 2).reshape(-1, CLASSES), y.flatten()),
    "scaled": lambda out, y: sum([2.0 * F.cross_entropy(out, y) / 3, 0.1]),  # type: ignore[list-item, return-value]
    "nll": lambda out, y: F.nll_loss(out.log_softmax(1), y, WEIGHT),
    "two heads": lambda out, y: F.cross_entropy(out, y) + 0.4 * F.cross_entropy(out.square(), y.view_as(y)),
    "legacy": lambda out, y: F.cross_entropy(out, y, None, True),
    "linear": lambda out, y: F.linear_cross_entropy(
        out.transpose(1, 2).reshape(-1, CLASSES), WEIGHT.outer(WEIGHT), y.flatten()
    ),
    "probabilities": lambda out, y: F.cross_entropy(out, F.one_hot(y.clamp(min=0), CLASSES).movedim(-1, 1).double()),
    "selected": lambda out, y: F.mse_loss(out[:, 0][y >= 0], y[y >= 0].double()),
    "selected bce": lambda out, y: F.binary_cross_entropy_with_logits(out[:, 0][y >= 0], (y[y >= 0] > 1).double()),
    "kl": lambda out, y: F.kl_div(out.log_softmax(1), out.detach().softmax(1), reduction="batchmean") * (y.size(0) > 0),
    "weighted mse": lambda out, y: F.mse_loss(out[:, 0], y.double(), weight=(y >= 0).double() + 1e-3),
    "each sample": lambda out, y: torch.stack(
        [F.cross_entropy(o[None], t[None].abs() % 4) for o, t in zip(out, y, strict=True)]
    ).mean(),
    "elements": lambda out, y: F.huber_loss(out[:, 1], y.double()),
    "samples": lambda out, y: out.square().mean() + 0 * y.sum(),
}


@pytest.mark.parametrize("name", EXACT)
def test_parts_with_other_targets_add_up_to_the_whole_batch(name: str) -> None:
    loss = EXACT[name]
    value, gradient = sums(decided(loss), LATE, LOGITS, SPLITS)
    expected, expected_gradient = whole(loss, LATE)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def test_ctc_is_a_mean_over_samples() -> None:
    def loss(out: Tensor, y: Tensor) -> Tensor:
        lengths = (y[:, 0] % 2 + 1).abs()
        return F.ctc_loss(out.movedim(2, 0).log_softmax(-1), y.abs() % 4 + 1, torch.full((len(y),), TOKENS), lengths)

    value, gradient = sums(decided(loss), TARGET, LOGITS, SPLITS)
    expected, expected_gradient = whole(loss, TARGET)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def with_auxiliary(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y) + 0.3 * out.square().mean()


def test_a_term_besides_is_exact_while_no_target_is_ignored_and_refused_from_then_on() -> None:
    objective = decided(with_auxiliary)
    value, gradient = sums(objective, TARGET, LOGITS, SPLITS)
    expected, expected_gradient = whole(with_auxiliary, TARGET)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)

    leaf = LOGITS.clone().requires_grad_()
    counts = [
        float(objective(leaf[begin:end], MicroBatch(None, LATE[begin:end], end - begin)).count)
        for begin, end in [(0, 5), (18, 24), (0, 5)]  # the second one has an ignored target
    ]
    assert counts[0] == 5
    partly = TARGET.clone()
    partly[19, 2] = -100
    assert float(objective(leaf[18:24], MicroBatch(None, partly[18:24], 6)).count) == float("inf")
    after = objective(leaf[0:5], MicroBatch(None, TARGET[0:5], 5))
    assert float(after.count) == float("inf")  # a step that is queued before the host knows must be skipped too
    assert "with_auxiliary" in objective.refusal
    assert "F.cross_entropy" in objective.refusal


def test_a_label_that_is_ignored_in_every_sample_is_no_reason_to_refuse() -> None:
    shifted = TARGET.clone()
    shifted[:, -1] = -100
    value, gradient = sums(decided(with_auxiliary, shifted), shifted, LOGITS, SPLITS)
    expected, expected_gradient = whole(with_auxiliary, shifted)
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def test_a_term_besides_class_weights_is_refused_before_training() -> None:
    with pytest.raises(OnecurveError, match=r"it contains the mean of F.cross_entropy.*onecurve.Weighted"):
        decided(lambda out, y: F.cross_entropy(out, y, weight=WEIGHT) + 0.3 * out.square().mean())


def test_an_evaluation_with_other_counts_is_refused() -> None:
    objective = decided(with_auxiliary)
    metric = evaluation_metrics_of(objective, {})[0]
    with torch.no_grad(), pytest.raises(OnecurveError, match=r"F\.cross_entropy"):
        metric.finish(metric.sums(LOGITS, MicroBatch(None, LATE, SAMPLES)))


def masked(out: Tensor, y: Tensor) -> Tensor:
    kept = y != -100
    return (F.cross_entropy(out, y, reduction="none") * kept).sum() / kept.sum()


def class_weights(out: Tensor, y: Tensor) -> Tensor:
    weights = WEIGHT.where(WEIGHT == 9, 1.0).to(out.dtype)[y]
    return (F.cross_entropy(out, y, reduction="none") * weights).sum() / weights.sum()


@pytest.mark.parametrize("loss", [masked, class_weights, torch.compile(F.cross_entropy, backend="aot_eager")])
def test_an_unknown_scalar_is_tried_with_targets_that_the_data_did_not_show(loss: Loss) -> None:
    with pytest.raises(OnecurveError, match="not a mean over samples for all targets: with some targets set to"):
        decided(loss)


@pytest.mark.parametrize(
    "loss",
    [
        lambda out, y: -out.log_softmax(1).gather(1, y[:, None]).mean(),  # fails for -100
        lambda out, y: F.cross_entropy(out, y, reduction="none").mean(),
        lambda out, y: (out[:, 0] - y).square().mean(1).mean(),
        lambda out, y: (F.one_hot(y, CLASSES).movedim(-1, 1) - out).abs().sum((1, 2)).mean(),
        lambda out, y: torch.vmap(lambda o, t: F.cross_entropy(o[None], t[None]))(out, y).mean(),
    ],
)
def test_a_true_mean_over_samples_is_accepted(loss: Loss) -> None:
    decided(loss)


class LearnedTemperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Module()
        self.inner.t = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, out: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(out * self.inner.t, y, reduction="none")


MODELS = {"other": nn.Linear(6, 8)}


def l2(out: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(out, y) + MODELS["other"].weight.square().sum()


def test_a_parameter_outside_of_the_model_is_refused_by_name() -> None:
    micro = MicroBatch(LOGITS[:4], TARGET[:4], 4)
    with pytest.raises(OnecurveError, match=r"LearnedTemperature.inner.t, a parameter of shape \[\]"):
        refuse_other_parameters(LearnedTemperature(), LOGITS[:4], micro, [])
    with pytest.raises(OnecurveError, match=r"MODELS\['other'\].weight, a parameter of shape \[8, 6\]"):
        refuse_other_parameters(l2, LOGITS[:4], micro, nn.Linear(6, 8).parameters())
    refuse_other_parameters(l2, LOGITS[:4], micro, MODELS["other"].parameters())  # the trained model itself
    frozen = LearnedTemperature().requires_grad_(False)
    refuse_other_parameters(frozen, LOGITS[:4], micro, [])
