"""Synchronized batch norm over one rank equals torch's ours. `onecurve check` covers several ranks (tests/promises)."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from onecurve.apply.absent_module import AbsentModule
from onecurve.apply.sync_batch_norm import average_statistics, synchronize
from onecurve.describe.errors import OnecurveError


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


class NormWithActivation(nn.BatchNorm1d):
    """A batch norm with a forward of its own, as many libraries of vision models have."""

    def forward(self, x):
        return torch.nn.functional.silu(super().forward(x))


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (nn.BatchNorm1d, (6, 3)),
        (nn.BatchNorm1d, (4, 3, 5)),
        (nn.BatchNorm2d, (4, 3, 5, 2)),
        (NormWithActivation, (6, 3)),
    ],
)
@pytest.mark.parametrize(
    "settings", [{}, {"affine": False}, {"momentum": None}, {"track_running_stats": False}, {"eps": 0.1}]
)
def test_synchronized_batch_norm_equals_torchs_own(group, kind, shape, settings) -> None:
    torch.manual_seed(0)
    ours, theirs = kind(3, **settings).double(), kind(3, **settings).double()
    if settings.get("affine", True):
        nn.init.normal_(ours.weight)
        theirs.load_state_dict(ours.state_dict())
    synchronize(ours, group)
    assert isinstance(ours, kind)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.float64) * 3 + 10
        x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
        y1, y2 = ours(x1), theirs(x2)
        weights = torch.randn_like(y1)
        (y1 * weights).sum().backward()
        (y2 * weights).sum().backward()
        torch.testing.assert_close(y1, y2)
        torch.testing.assert_close(x1.grad, x2.grad)
    for (name, parameter), expected in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, expected.grad, msg=name)
    for (name, buffer), expected in zip(ours.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(buffer, expected, msg=name)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_in_16_bits_the_statistics_are_in_float32(group, dtype) -> None:
    torch.manual_seed(0)
    ours, theirs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    nn.init.normal_(ours.weight)
    theirs.load_state_dict(ours.state_dict())
    synchronize(ours, group)
    x = (torch.randn(8, 3, 5, 5) * 3 + 10).to(dtype)
    x1, x2 = x.clone().requires_grad_(), x.clone().requires_grad_()
    weights = torch.randn(8, 3, 5, 5).to(dtype)
    for norm, own in ((ours, x1), (theirs, x2)):
        (norm(own) * weights).sum().backward()
    assert ours.running_var.dtype == torch.float32
    torch.testing.assert_close(ours.running_mean, theirs.running_mean, rtol=1e-6, atol=0)
    torch.testing.assert_close(ours.running_var, theirs.running_var, rtol=1e-5, atol=0)
    torch.testing.assert_close(ours.weight.grad, theirs.weight.grad, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.bias.grad, theirs.bias.grad)
    torch.testing.assert_close(ours(x1), theirs(x2))
    eps = torch.finfo(dtype).eps  # ours is a sum of three rounded terms
    torch.testing.assert_close(x1.grad, x2.grad, rtol=eps, atol=eps)


class NormByHand(nn.BatchNorm1d):
    def forward(self, x):
        return (x - x.mean(0)) / x.std(0)


def test_a_batch_norm_that_cannot_be_synchronized_is_refused(group) -> None:
    model = nn.Sequential(nn.Linear(3, 3), NormByHand(3))
    synchronize(model, group)
    with pytest.raises(OnecurveError, match=r"batch norm '1' of class NormByHand .* Job\(batch_norm='local'\)"):
        model(torch.randn(4, 3))
    model.eval()(torch.randn(4, 3))


def test_averaging_one_rank_changes_nothing(group) -> None:
    norm = nn.BatchNorm1d(3)
    norm(torch.randn(5, 3))
    before = norm.running_var.clone()
    average_statistics(norm, group)
    assert torch.equal(norm.running_var, before)


def test_a_batch_norm_of_another_pipeline_stage_is_left_alone(group) -> None:
    absent = AbsentModule("norm", nn.BatchNorm1d(3, device="meta"), lambda: torch.zeros(2, 3))
    model = nn.Sequential(absent, nn.BatchNorm1d(3))
    synchronize(model, group)
    average_statistics(model, group)
    assert torch.equal(model(torch.randn(2, 3)), torch.zeros(2, 3))
