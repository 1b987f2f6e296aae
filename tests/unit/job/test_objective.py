from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Loss
from onecurve.job.objective import objective_of, refuse_non_mean_scalar, weigh
from onecurve.job.weighted import Weighted

DATA = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
LENGTHS = torch.randint(1, 5, (200,), generator=torch.Generator().manual_seed(1))


def read(begin: int, end: int) -> MicroBatch:
    return MicroBatch(DATA[begin:end], LENGTHS[begin:end], end - begin)


def check_loss(loss: Loss, infer: Callable[[MicroBatch], Tensor] = lambda micro: micro.inputs) -> None:
    micro = read(0, 12)
    refuse_non_mean_scalar(loss, infer, read, micro, infer(micro))


def test_the_three_forms_of_a_loss_agree() -> None:
    values = torch.tensor([1.0, 2.0, 6.0])
    for form in (values, Weighted(values.sum(), 3), values.mean()):
        weighted = weigh(form, 3)
        assert (weighted.sum.item(), weighted.count) == (9.0, 3)


@pytest.mark.parametrize("value", [torch.zeros(2, 3), torch.zeros(4), 1.0, None, Weighted(torch.zeros(3), 3)])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(OnecurveError, match="loss: "):
        weigh(value, 3)


def test_a_scalar_mean_over_samples_is_accepted() -> None:
    check_loss(lambda out, _: out.square().sum(1).mean())


def token_mean(out: Tensor, lengths: Tensor) -> Tensor:
    mask = torch.arange(4) < lengths[:, None]
    return (out.square() * mask).sum() / mask.sum()


def contrastive(out: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(out @ out.T, torch.arange(len(out)))


@pytest.mark.parametrize("loss", [token_mean, contrastive])
def test_a_mean_over_something_else_is_refused_with_the_fix(loss) -> None:
    with pytest.raises(OnecurveError, match=r"not a mean over samples.*onecurve.Weighted.*contrastive"):
        check_loss(loss)


def test_a_wrong_weighting_is_found_even_if_all_losses_are_nearly_equal() -> None:
    """At the start of training all losses are nearly equal, so a wrong weighting changes only the last digits."""

    def loss(out: Tensor, lengths: Tensor) -> Tensor:
        weights = lengths.double()
        return ((5.5 + 0.02 * out[:, 0]) * weights).sum() / weights.sum()

    with pytest.raises(OnecurveError, match="not a mean over samples"):
        check_loss(loss)


def test_a_loss_per_sample_is_only_checked_for_its_shape() -> None:
    check_loss(lambda out, _: out.sum(1))
    with pytest.raises(OnecurveError, match=r"shape \[12, 4\]"):
        check_loss(lambda out, _: out)


def test_a_loss_with_float32_class_weights_is_accepted() -> None:
    weights = torch.rand(4)

    def weighted(out: Tensor, _: Tensor) -> Tensor:
        return F.cross_entropy(out, torch.zeros(len(out), dtype=torch.long), weight=weights, reduction="none")

    check_loss(weighted)
    check_loss(lambda out, _: (out.float() @ weights).mean())


def test_a_model_with_random_output_gets_its_own_message() -> None:
    with pytest.raises(OnecurveError, match="the model draws random numbers in its forward"):
        check_loss(lambda out, _: out.mean(), lambda m: m.inputs + torch.randn_like(m.inputs))


def test_an_error_in_the_loss_is_a_user_code_error() -> None:
    with pytest.raises(UserCodeError, match="loss: it raised ZeroDivisionError"):
        objective_of(lambda *_: 1 / 0)(None, read(0, 2))
