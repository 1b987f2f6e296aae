"""Losses that cannot be split are refused before training; all others are accepted."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import onecurve as oc
from onecurve.describe.errors import OnecurveError
from onecurve.describe.scalar_form import ScalarForm
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Loss
from onecurve.job.loss_trial import LossTrial

DATA = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.randint(1, 5, (200,), generator=torch.Generator().manual_seed(1))

Infer = Callable[[MicroBatch], Any]


def read(begin: int, end: int, copies: int = 1) -> MicroBatch:
    samples = torch.arange(begin, end).repeat(copies)
    return MicroBatch(DATA[samples], LENGTHS[samples], len(samples))


def inputs_of(micro: MicroBatch) -> Tensor:
    return micro.inputs


def check_loss(loss: Loss, infer: Infer = inputs_of, **settings: Any) -> str:
    first, trial = read(0, 12), LossTrial(infer=infer, read=read, **settings)
    return trial.refuse_unsplittable(loss, first)


def token_mean(out: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.arange(4) < lengths[:, None]
    return (out.square() * mask).sum() / mask.sum()


def contrastive(out: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(out @ out.T, torch.arange(len(out)))


def contrastive_per_sample(out: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(out @ out.T, torch.arange(len(out)), reduction="none")


def test_a_scalar_mean_over_samples_is_accepted() -> None:
    assert check_loss(lambda out, _: out.square().sum(1).mean()) == ""


@pytest.mark.parametrize("loss", [token_mean, contrastive])
def test_a_mean_over_something_else_is_refused_with_the_fix(loss: Loss) -> None:
    message = rf"loss '{loss.__name__}'.*not a mean over samples.*onecurve.Weighted.*contrastive"
    with pytest.raises(OnecurveError, match=message):
        check_loss(loss)


def test_a_sum_over_samples_is_named() -> None:
    with pytest.raises(OnecurveError, match=r"is a sum over samples, not a mean.*reduction='mean'"):
        check_loss(lambda out, _: out.square().sum())


def test_a_wrong_weighting_is_found_even_if_all_losses_are_nearly_equal() -> None:
    """At the start of training all losses are nearly equal, so a wrong weighting changes only the last digits."""

    def loss(out: Tensor, lengths: Tensor) -> Tensor:
        weights = lengths.double()
        return ((5.5 + 0.02 * out[:, 0]) * weights).sum() / weights.sum()

    with pytest.raises(OnecurveError, match="not a mean over samples"):
        check_loss(loss)
    with pytest.raises(OnecurveError, match="not a mean over samples"):  # rounding is measured, not assumed
        check_loss(loss, low_precision=torch.bfloat16)


def test_a_loss_per_sample_is_accepted_if_samples_do_not_influence_each_other() -> None:
    assert check_loss(lambda out, _: out.sum(1)) == ""
    with pytest.raises(OnecurveError, match=r"shape \[12, 4\]"):
        check_loss(lambda out, _: out)


def test_a_loss_per_sample_that_compares_samples_is_refused_with_two_values_of_one_sample() -> None:
    message = (
        r"loss 'contrastive_per_sample'.*sample \d+ has [\d.e-]+ among 12 samples, and [\d.e-]+ among [48] of them"
    )
    with pytest.raises(OnecurveError, match=message + r".*it is the loss that mixes samples"):
        check_loss(contrastive_per_sample)


def test_a_model_that_mixes_samples_is_named_as_the_cause() -> None:
    with pytest.raises(OnecurveError, match="it is the model's output that depends on the other samples"):
        check_loss(lambda out, _: out.sum(1), lambda micro: micro.inputs - micro.inputs.mean(0))


def test_padding_that_depends_on_the_batch_is_named_as_a_possible_cause() -> None:
    def padded(begin: int, end: int, copies: int) -> MicroBatch:
        micro = read(begin, end, copies)
        longest = 4 if end == 12 else 3
        return MicroBatch(micro.inputs[:, :longest], micro.target, micro.samples)

    def mean_of_samples(out: Tensor, _: Tensor) -> Tensor:
        return out.square().mean(1)

    trial = LossTrial(infer=inputs_of, read=padded)
    with pytest.raises(OnecurveError, match="padding may be the cause: mask it"):
        trial.refuse_unsplittable(mean_of_samples, padded(0, 12, 1))


def test_a_weighted_loss_must_add_up_in_sum_and_count() -> None:
    assert check_loss(lambda out, lengths: oc.Weighted((out[:, 0] * lengths).sum(), lengths.sum())) == ""
    with pytest.raises(OnecurveError, match=r"does not add up.*not their mean"):  # a mean instead of a sum
        check_loss(lambda out, _: oc.Weighted(out.square().mean(), len(out)))
    with pytest.raises(OnecurveError, match=r"does not add up.*count 1, .*count 2"):
        check_loss(lambda out, _: oc.Weighted(out.square().sum(), 1))


def test_rounding_is_no_reason_to_refuse() -> None:
    def noisy(micro: MicroBatch) -> Tensor:  # the last digits depend on the size of the batch
        return micro.inputs * (1 + 1e-6 * micro.samples)

    for loss in (lambda out, _: out.square().sum(1), lambda out, _: out.square().mean()):
        with pytest.raises(OnecurveError):
            check_loss(loss, lambda micro: noisy(micro).double())
    assert check_loss(lambda out, _: out.square().sum(1), lambda micro: noisy(micro)) == ""


def test_rounding_in_16_bits_is_measured() -> None:
    def noisy(micro: MicroBatch) -> Tensor:
        return micro.inputs * (1 + 1e-4 * micro.samples)

    losses = [lambda out, _: out.square().sum(1), lambda out, _: out.square().mean()]
    for loss in losses:
        with pytest.raises(OnecurveError):
            check_loss(loss, noisy)
        assert check_loss(loss, noisy, low_precision=torch.bfloat16) == ""
    for loss in (contrastive, contrastive_per_sample):
        with pytest.raises(OnecurveError):
            check_loss(loss, low_precision=torch.bfloat16)


def test_a_value_near_zero_is_judged_by_the_scale_of_the_batch() -> None:
    def loss(out: Tensor, lengths: Tensor) -> Tensor:
        return torch.where(lengths == 1, 1e-9 * len(out), out[:, 0])

    assert check_loss(loss) == ""


def test_a_loss_with_float32_class_weights_is_accepted() -> None:
    weights = torch.rand(4)

    def weighted(out: Tensor, _: Tensor) -> Tensor:
        return F.cross_entropy(out, torch.zeros(len(out), dtype=torch.long), weight=weights, reduction="none")

    check_loss(weighted)
    check_loss(lambda out, _: (out.float() @ weights).mean())


def test_a_model_with_random_output_is_refused_with_a_scalar_and_noted_otherwise() -> None:
    def noisy(micro: MicroBatch) -> Tensor:
        return micro.inputs + torch.randn_like(micro.inputs)

    with pytest.raises(OnecurveError, match="the model draws random numbers in its forward"):
        check_loss(lambda out, _: out.mean(), noisy)
    note = check_loss(lambda out, _: out.mean(1), noisy)
    assert "draws random numbers" in note
    assert "was not tested" in note


def test_a_number_drawn_once_per_forward_is_the_same_for_a_batch_and_its_parts() -> None:
    """Layer drop: few outcomes, so that repeated forwards are often equal."""
    for seed in range(20):
        random.seed(seed)  # whatever the caller has drawn before

        def layer_drop(micro: MicroBatch) -> Tensor:
            return micro.inputs * (random.random() < 0.5)

        assert check_loss(lambda out, _: out.mean(1), layer_drop) == ""
        assert check_loss(lambda out, _: out.mean(), layer_drop) == ""


def test_a_forward_and_a_loss_that_count_their_calls_are_tested_with_the_same_count() -> None:
    calls = [0]

    def count(value: Tensor) -> Tensor:
        calls[0] += 1
        return value * calls[0]

    @contextmanager
    def kept_state() -> Iterator[None]:
        before = calls[0]
        yield
        calls[0] = before

    def infer(micro: MicroBatch) -> Tensor:
        return count(micro.inputs)

    assert check_loss(lambda out, _: count(out).mean(), infer, kept_state=kept_state) == ""
    with pytest.raises(OnecurveError, match="draws random numbers"):
        check_loss(lambda out, _: out.mean(), infer)


def test_a_rare_draw_per_sample_is_noted_in_every_run() -> None:
    def token_drop(micro: MicroBatch) -> Tensor:
        kept = torch.tensor([random.random() < 0.5 for _ in range(micro.samples)])
        return micro.inputs * kept[:, None]

    for seed in range(20):
        random.seed(seed)
        assert "draws random numbers" in check_loss(lambda out, _: out.mean(1), token_drop)


def test_a_loss_of_the_training_output_alone_is_told_about_evaluation_mode() -> None:
    """Detection models return a dict of losses in training mode and a list of boxes in evaluation mode."""
    with pytest.raises(OnecurveError, match=r"'list' object has no attribute 'values'.*output in evaluation mode"):
        check_loss(lambda out, _: sum(out.values()), lambda micro: [{"boxes": row} for row in micro.inputs])


def test_a_rank_with_placeholder_outputs_makes_the_same_calls_but_does_not_judge() -> None:
    calls: dict[bool, int] = {}
    for judges in (True, False):
        counted: list[int] = []

        def infer(micro: MicroBatch, counted: list[int] = counted) -> Tensor:
            counted.append(micro.samples)
            return micro.inputs

        trial = LossTrial(infer=infer, read=read, judges=judges, on_any_rank=lambda _: True)
        try:
            trial.refuse_unsplittable(contrastive_per_sample, read(0, 12))
            assert not judges
        except OnecurveError:
            assert judges
        calls[judges] = len(counted)
    assert calls[True] == calls[False] == 6  # the whole, two parts, and the whole with three other seeds


def masked_mean(out: Tensor, target: Tensor) -> Tensor:
    """A mean over the targets below 100: floating-point numbers, which no trial edits."""
    mask = target < 100
    return ((out[:, 0] - target).square() * mask).sum() / mask.sum()


def test_an_audited_step_shows_a_mean_over_something_else_than_samples() -> None:
    def read_numbers(begin: int, end: int, copies: int) -> MicroBatch:
        assert copies == 1
        return MicroBatch(DATA[begin:end], DATA[begin:end, 1], end - begin)

    trial = LossTrial(infer=inputs_of, read=read)
    usual = MicroBatch(DATA[:8], torch.arange(8.0), 8)
    forms: list[ScalarForm] = []
    unknown = LossTrial(infer=inputs_of, read=read_numbers, on_form=forms.append)
    assert unknown.refuse_unsplittable(masked_mean, unknown.read(0, 12, 1)) == ""
    assert not forms[0].counted
    assert not forms[0].per_sample
    trial.refuse_uneven_step(masked_mean, forms[0], usual, 100)
    rare = MicroBatch(usual.inputs, usual.target.clone(), 8)
    rare.target[6] = 500
    with pytest.raises(OnecurveError, match=r"'masked_mean'.*with the targets of step 200, 8 samples at once"):
        trial.refuse_uneven_step(masked_mean, forms[0], rare, 200)
    LossTrial(infer=inputs_of, read=read, judges=False).refuse_uneven_step(masked_mean, forms[0], rare, 200)
