"""Full tensors are gathered in parts, in the order of their elements."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from onecurve.device.local_tensor import Box, _contiguous_regions, _overlap


@given(st.lists(st.integers(0, 6), max_size=4).map(tuple), st.integers(1, 40))
def test_regions_follow_each_other_and_are_small(shape: tuple[int, ...], elements: int) -> None:
    full = torch.arange(math.prod(shape)).view(shape)
    parts = [full[region] for region in _contiguous_regions(shape, elements)]
    assert all(part.numel() <= elements for part in parts)
    assert torch.equal(
        torch.cat([torch.empty(0, dtype=torch.int64), *(part.reshape(-1) for part in parts)]), full.reshape(-1)
    )


@given(st.data(), st.lists(st.integers(1, 6), min_size=1, max_size=3).map(tuple), st.integers(1, 40))
def test_every_element_of_a_box_is_in_one_region(data, shape: tuple[int, ...], elements: int) -> None:
    ends = [sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size)))) for size in shape]
    full_slices = tuple(slice(begin, end) for begin, end in ends)
    local_slices = tuple(slice(2, 2 + end - begin) for begin, end in ends)
    box = Box(full_slices, local_slices)
    full, local = torch.arange(math.prod(shape)).view(shape), torch.full([size + 2 for size in shape], -1)
    local[local_slices] = full[full_slices]
    expected, gathered = torch.zeros_like(full), []
    expected[full_slices] = full[full_slices]
    for region in _contiguous_regions(shape, elements):
        part = torch.zeros_like(full[region])
        if (overlap := _overlap(region, box)) is not None:
            part[overlap.full] = local[overlap.local]
        gathered.append(part.reshape(-1))
    assert torch.equal(torch.cat(gathered), expected.reshape(-1))
