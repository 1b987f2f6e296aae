"""Every bit of a tensor changes its hash."""

import pytest
import torch

from onecurve.device.bit_hash import bit_hash, mixed

INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [1, 3, 64, 1001])
def test_one_bit_changes_the_hash(dtype: torch.dtype, size: int) -> None:
    tensor = torch.randn(size).to(dtype)
    bits = 8 * tensor.itemsize
    for index in (0, size // 2, size - 1):
        for bit in range(bits):
            other = tensor.clone()
            other.view(INTEGERS[tensor.itemsize])[index] ^= (1 << bit) if bit < bits - 1 else -(1 << bit)
            assert bit_hash(other) != bit_hash(tensor), (index, bit)


def test_values_that_change_places_change_the_hash_and_memory_layout_does_not() -> None:
    tensor = torch.randn(2, 8, 4, 4)
    assert bit_hash(tensor.flip(1)) != bit_hash(tensor)
    assert bit_hash(tensor.contiguous(memory_format=torch.channels_last)) == bit_hash(tensor)
    assert bit_hash(torch.zeros(0)) == 0
    assert bit_hash(torch.ones(()).expand(5)) == bit_hash(torch.ones(5))


def test_equal_changes_of_two_ranks_do_not_cancel_out() -> None:
    """A rank that flips the sign bit of both shares that it computes changes both hashes by the same."""
    hashes, flipped = torch.tensor([1, 2]), torch.tensor([1 - 2**63, 2])
    own, witnessed = (mixed(flipped, salt).sum() for salt in (0, 1))
    right_own, right_witnessed = (mixed(hashes, salt).sum() for salt in (0, 1))
    assert own - right_own + right_witnessed - witnessed != 0
