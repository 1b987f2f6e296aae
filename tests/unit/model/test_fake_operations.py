"""Fake tensors give the shapes and dtypes that real tensors have."""

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.model.fake_operations import register_fake_operations

S, K, N, GROUPS = 16, 8, 24, 2
ENDS = torch.tensor([4, 16], dtype=torch.int32)
SHAPES = {"rows": (S, K), "experts": (GROUPS, K, N), "transposed rows": (K, S), "columns": (S, N)}


@pytest.mark.parametrize(("a", "b"), [("rows", "experts"), ("transposed rows", "columns")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_grouped_products(a: str, b: str, dtype: torch.dtype) -> None:
    register_fake_operations()
    real_a, real_b = (torch.zeros(SHAPES[name], dtype=dtype) for name in (a, b))
    real = F.grouped_mm(real_a, real_b, offs=ENDS)
    mode = FakeTensorMode()
    with mode:
        fake = F.grouped_mm(mode.from_tensor(real_a), mode.from_tensor(real_b), offs=mode.from_tensor(ENDS))
    assert (fake.shape, fake.dtype) == (real.shape, real.dtype)
