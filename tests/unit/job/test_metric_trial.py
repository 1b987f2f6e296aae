"""Metrics that depend on how samples are cut into micro-batches are refused; all others are accepted."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import onecurve as oc
from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.job.evaluation_metrics import metrics_of
from onecurve.job.job import AnyMetric
from onecurve.job.loss_trial import LossTrial
from onecurve.job.metric_trial import refuse_unsplittable_metrics

SAMPLES = 64
CLASSES = torch.randint(5, (SAMPLES,), generator=torch.Generator().manual_seed(0))
LOGITS = torch.randn(SAMPLES, 5, generator=torch.Generator().manual_seed(1))
LENGTHS = torch.randint(1, 9, (SAMPLES,), generator=torch.Generator().manual_seed(2))


def read_classes(begin: int, end: int, copies: int) -> MicroBatch:
    numbers = torch.arange(begin, end).repeat(copies)
    return MicroBatch(LOGITS[numbers], CLASSES[numbers], len(numbers))


def read_padded(begin: int, end: int, copies: int) -> MicroBatch:
    """Tokens, padded with 0 to the longest sample of the micro-batch."""
    numbers = torch.arange(begin, end).repeat(copies)
    longest = int(LENGTHS[numbers].max())
    tokens = torch.where(torch.arange(longest) < LENGTHS[numbers, None], 7, 0)
    return MicroBatch(tokens, tokens, len(numbers))


def check(
    metric: AnyMetric,
    read: Callable[[int, int, int], MicroBatch] = read_classes,
    infer: Callable[[MicroBatch], Any] = lambda micro: micro.inputs,
    **settings: Any,
) -> str:
    first = read(0, 12, 1)
    trial = LossTrial(infer=infer, read=read, **settings)
    return refuse_unsplittable_metrics(trial, metrics_of({"mine": metric}), first)


def token_accuracy(output: Tensor, target: Tensor) -> oc.Weighted:
    return oc.Weighted((output == target).sum(), target.numel())


def token_accuracy_without_padding(output: Tensor, target: Tensor) -> oc.Weighted:
    words = target != 0
    return oc.Weighted(((output == target) & words).sum(), words.sum())


@pytest.mark.parametrize(
    "metric",
    [
        oc.metric.top1,
        oc.Metric(lambda _, target: torch.bincount(target, minlength=5).double(), lambda sums: sums[0].item()),
        lambda out, target: (out.argmax(1) == target).float(),
        lambda out, target: oc.Weighted((out.sum(1) - out.sum(1)).sum(), len(target)),  # always zero
    ],
)
def test_sums_over_samples_are_accepted(metric: AnyMetric) -> None:
    assert check(metric) == ""


def test_a_mean_in_place_of_a_sum_is_refused() -> None:
    with pytest.raises(OnecurveError, match=r"metric 'mine': it does not add up: 12 samples .* sum 0.16.*"):
        check(lambda out, target: oc.Weighted((out.argmax(1) == target).double().mean(), len(target)))


def test_a_metric_that_counts_padding_is_refused() -> None:
    assert check(token_accuracy_without_padding, read_padded) == ""
    with pytest.raises(OnecurveError, match=r"does not add up.*Leave out padding"):
        check(token_accuracy, read_padded)


def test_padding_that_differs_only_in_a_later_trial_is_noticed() -> None:
    def read(begin: int, end: int, copies: int) -> MicroBatch:
        """As `read_padded`, but the first samples are all padded to the same length."""
        micro = read_padded(begin, end, copies)
        tokens = torch.nn.functional.pad(micro.inputs, (0, 8 - micro.inputs.shape[1])) if end <= 12 else micro.inputs
        return MicroBatch(tokens, tokens, micro.samples)

    assert check(token_accuracy_without_padding, read) == ""
    with pytest.raises(OnecurveError, match="does not add up"):
        check(token_accuracy, read)


def test_a_vector_that_does_not_add_up_is_refused_with_its_element() -> None:
    metric = oc.Metric(lambda out, _: torch.stack([out.sum(), out.max()]), lambda sums: sums[0].item())
    with pytest.raises(OnecurveError, match=r"in element 1 of its sums"):
        check(metric)


def test_a_vector_whose_length_depends_on_the_batch_is_refused() -> None:
    metric = oc.Metric(lambda out, _: out.flatten(), lambda sums: sums[0].item())
    with pytest.raises(OnecurveError, match=r"shape \[60\] for 12 samples and \[20\] for 4"):
        check(metric)


def test_rounding_that_changes_one_prediction_is_no_reason_to_refuse() -> None:
    def nearly_equal(micro: MicroBatch) -> Tensor:
        """In the first trial alone, the prediction of a sample depends on the size of its batch."""
        output = micro.inputs.clone()
        if torch.equal(micro.inputs[0], LOGITS[0]):
            output[0] = torch.eye(5)[CLASSES[0] if micro.samples == 12 else (CLASSES[0] + 1) % 5]
        return output

    assert check(oc.metric.top1, infer=nearly_equal) == ""


def test_a_model_that_draws_random_numbers_is_named() -> None:
    note = check(lambda out, _: out.sum(1), infer=lambda micro: micro.inputs + torch.rand_like(micro.inputs))
    assert note.startswith("metric mine: the model draws random numbers")


def test_low_precision_and_single_samples_are_not_tested() -> None:
    def mean(out: Tensor, target: Tensor) -> oc.Weighted:
        return oc.Weighted(out.mean(), len(target))

    assert check(mean, low_precision=torch.bfloat16) == ""
    trial = LossTrial(infer=lambda micro: micro.inputs, read=read_classes)
    one = read_classes(0, 1, 1)
    assert refuse_unsplittable_metrics(trial, metrics_of({"mine": mean}), one) == ""


def test_a_rank_without_the_end_of_the_model_does_not_judge() -> None:
    """Its outputs are placeholders. It makes the same calls as the others, and another rank refuses."""
    calls = []

    def infer(micro: MicroBatch) -> Tensor:
        calls.append(micro.samples)
        return torch.zeros(())

    assert check(oc.metric.top1, infer=infer, judges=False, on_any_rank=lambda _: True) == ""
    assert calls == [12, 4, 8, 12, 12, 12]
