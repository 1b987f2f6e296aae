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


def try_loss(loss: Loss, infer: Callable[[MicroBatch], Tensor] = lambda micro: micro.inputs) -> None:
    micro = read(0, 12)
    refuse_non_mean_scalar(loss, infer, read, micro, infer(micro))


def test_the_three_forms_agree() -> None:
    values = torch.tensor([1.0, 2.0, 6.0])
    for form in (values, Weighted(values.sum(), 3), values.mean()):
        weighted = weigh(form, 3)
        assert (weighted.sum.item(), weighted.count) == (9.0, 3)


@pytest.mark.parametrize("value", [torch.zeros(2, 3), torch.zeros(4), 1.0, None, Weighted(torch.zeros(3), 3)])
def test_other_forms_are_refused(value: object) -> None:
    with pytest.raises(OnecurveError, match="loss: "):
        weigh(value, 3)


def test_a_mean_over_samples_passes() -> None:
    try_loss(lambda out, _: out.square().sum(1).mean())


def token_mean(out: Tensor, lengths: Tensor) -> Tensor:
    counted = torch.arange(4) < lengths[:, None]
    return (out.square() * counted).sum() / counted.sum()


def contrastive(out: Tensor, _: Tensor) -> Tensor:
    return F.cross_entropy(out @ out.T, torch.arange(len(out)))


@pytest.mark.parametrize("loss", [token_mean, contrastive])
def test_a_mean_over_something_else_is_refused_with_the_mend(loss) -> None:
    with pytest.raises(OnecurveError, match=r"not a mean over samples.*onecurve.Weighted.*contrastive"):
        try_loss(loss)


def test_raggedness_is_seen_though_losses_are_nearly_alike() -> None:
    """At the start all losses are nearly alike, so a wrong weighting shows late in the digits."""

    def loss(out: Tensor, lengths: Tensor) -> Tensor:
        weights = lengths.double()
        return ((5.5 + 0.02 * out[:, 0]) * weights).sum() / weights.sum()

    with pytest.raises(OnecurveError, match="not a mean over samples"):
        try_loss(loss)


def test_other_forms_are_not_tested_but_their_shape_is() -> None:
    try_loss(lambda out, _: out.sum(1))
    with pytest.raises(OnecurveError, match=r"shape \[12, 4\]"):
        try_loss(lambda out, _: out)


def test_a_loss_with_float32_weights_inside_passes() -> None:
    weights = torch.rand(4)

    def weighted(out: Tensor, _: Tensor) -> Tensor:
        return F.cross_entropy(out, torch.zeros(len(out), dtype=torch.long), weight=weights, reduction="none")

    try_loss(weighted)
    try_loss(lambda out, _: (out.float() @ weights).mean())


def test_a_model_that_draws_is_told_from_a_false_mean() -> None:
    with pytest.raises(OnecurveError, match="the model draws random numbers in its forward"):
        try_loss(lambda out, _: out.mean(), lambda m: m.inputs + torch.randn_like(m.inputs))


def test_an_error_in_the_loss_is_the_users() -> None:
    with pytest.raises(UserCodeError, match="loss: it raised ZeroDivisionError"):
        objective_of(lambda *_: 1 / 0)(None, read(0, 2))
