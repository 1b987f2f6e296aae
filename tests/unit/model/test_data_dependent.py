"""Data-dependent operations on fake tensors return the largest possible shapes, and zeros."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.model.data_dependent import DataDependentFallback


def test_value_dependent_shapes_are_the_largest_possible() -> None:
    with FakeTensorMode(), DataDependentFallback():
        x = torch.randn(3, 4)
        mask = x > 0
        assert x[mask].shape == (12,)
        assert x[:, mask[0]].shape == (3, 4)
        assert mask.nonzero().shape == (12, 2)
        assert torch.masked_select(x, mask).shape == (12,)
        assert [indices.shape for indices in torch.where(mask)] == [(12,), (12,)]


def test_a_number_that_is_read_is_zero() -> None:
    with FakeTensorMode(), DataDependentFallback():
        assert torch.tensor([3.0]).sum().item() == 0.0
        assert not (torch.ones(2).sum() > 1)
        assert int(torch.ones(2, dtype=torch.int64).sum()) == 0


class Unique(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.unique(x)


class Average(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / (1 / x.sum().item())


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (Unique(), r"module '0' \(Unique\): the shape of what aten._unique2.default returns depends on the values"),
        (Average(), r"module '0' \(Average\): it reads values of its tensors .* raised ZeroDivisionError"),
    ],
)
def test_a_trace_that_needs_values_is_refused_with_the_name_of_the_module(module: nn.Module, message: str) -> None:
    with pytest.raises(OnecurveError, match=message), FakeTensorMode(), DataDependentFallback():
        MicroBatch(torch.ones(3), None, 3).forward(nn.Sequential(module))
