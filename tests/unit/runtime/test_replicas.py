"""Replicas are compared bit for bit."""

import pytest
import torch

from onecurve.runtime.replicas import checksum, outliers


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("shape", [(3,), (4,), (5, 7), ()])
@pytest.mark.parametrize("transposed", [False, True])
def test_every_bit_changes_the_checksum(dtype: torch.dtype, shape: tuple[int, ...], transposed: bool) -> None:
    tensor = torch.randn(shape, dtype=torch.float64).to(dtype)
    if transposed and len(shape) == 2:
        tensor = tensor.T
    other = torch.randn(8)
    before = int(checksum([other, tensor]))
    content = tensor.contiguous().reshape(-1).view(torch.uint8).clone()
    for bit in range(0, 8 * content.numel(), 7):
        changed = content.clone()
        changed[bit // 8] ^= 1 << bit % 8
        flipped = changed.view(dtype).reshape(tensor.shape)
        assert int(checksum([other, flipped.T.contiguous().T if transposed and len(shape) == 2 else flipped])) != before
    assert int(checksum([other, tensor.clone()])) == before


@pytest.mark.parametrize(
    ("values", "expected"),
    [([5, 5, 7], [2]), ([7, 5, 5, 5], [0]), ([5, 7], [0, 1]), ([5, 5, 7, 7], [0, 1, 2, 3]), ([1, 2, 2, 3], [0, 3])],
)
def test_the_ranks_that_differ_from_the_most_are_named(values: list[int], expected: list[int]) -> None:
    assert outliers(values) == expected
