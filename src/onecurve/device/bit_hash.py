"""Hashes of tensors that differ if a single bit differs. They are computed and stay on the tensor's device."""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

_COLUMNS = 64
"""Elements at different columns have different factors, so that values that change places change the hash."""
_ODD = -0x61C8864680B583EB  # 2^64 over the golden ratio, as a signed number
_LOW_33, _LOW_34, _LOW_37 = 2**33 - 1, 2**34 - 1, 2**37 - 1


@torch.no_grad()
def bit_hash(tensor: Tensor) -> Tensor:
    """A 64-bit number as a tensor of shape `[]`. Of a DTensor, that of the elements on this rank.

    A sum that wraps around, of the tensor's bits as integers with odd factors: a change of one bit always changes it.
    """
    words = _words(tensor.to_local() if isinstance(tensor, DTensor) else tensor)
    in_rows = words.numel() // _COLUMNS * _COLUMNS
    total = words[in_rows:].sum(dtype=torch.int64)
    if in_rows:
        columns = words[:in_rows].view(-1, _COLUMNS).sum(0, dtype=torch.int64)
        total = total + (columns * _factors(columns.device)).sum()
    return total


def mixed(hashes: Tensor, salt: int) -> Tensor:
    """Mix the bits of each hash with its position and a number, so that sums of hashes do not cancel out."""
    # The finalizer of splitmix64; shifts of signed numbers copy the sign, so those bits are masked.
    position = torch.arange(1, hashes.numel() + 1, device=hashes.device)
    mix = hashes + (position + (salt + 1) * 0x1000003D) * _ODD
    mix = (mix ^ ((mix >> 30) & _LOW_34)) * -0x40A7B892E31B1A47
    mix = (mix ^ ((mix >> 27) & _LOW_37)) * -0x6B2FB644ECCEEE15
    return mix ^ ((mix >> 31) & _LOW_33)


def _words(tensor: Tensor) -> Tensor:
    """The bits of the elements, in the order of their indices, as a vector of integers."""
    tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
    flat = tensor.detach().contiguous().view(-1)
    if flat.nbytes % 8 == 0 and flat.storage_offset() * flat.itemsize % 8 == 0:
        return flat.view(torch.int64)
    return flat.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.itemsize])


def _factors(device: torch.device) -> Tensor:
    return torch.arange(3, 2 * _COLUMNS + 3, 2, device=device) * 0x5851F42D4C957F2D | 1
