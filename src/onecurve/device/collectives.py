"""Collectives besides those of the parallelism engines: sums of numbers and short texts over ranks, without pickle."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from onecurve.device.gloo import connect_neighbours, gloo_lazy_init
from onecurve.device.process_groups import BACKGROUND

Group = dist.ProcessGroup | None
"""A process group, or None for a group of one rank."""


def all_reduce_sum(group: Group, values: Tensor) -> Tensor:
    """Sum `values` over the group, in place and bitwise identical on every rank."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


def all_reduce_sum_among(group: Group, members: Sequence[int], values: Tensor) -> Tensor:
    """Sum `values` over some ranks of the group, in place and bitwise identical on these ranks.

    Only `members` call it. The first of them receives the others' values, adds them and sends the sum back.
    """
    if group is None or len(members) == group.size():
        return all_reduce_sum(group, values)
    root, *others = members
    if group.rank() != root:
        dist.send(values, group=group, group_dst=root)
        dist.recv(values, group=group, group_src=root)
        return values
    received = torch.empty_like(values)
    for other in others:
        dist.recv(received, group=group, group_src=other)
        values += received
    for other in others:
        dist.send(values, group=group, group_dst=other)
    return values


def all_gather(group: Group, values: Tensor) -> Tensor:
    """Return the values of all ranks of the group, in rank order, along a new first dimension."""
    if group is None:
        return values.unsqueeze(0)
    if values.dtype == torch.bool:  # gloo has no such type
        return all_gather(group, values.to(torch.uint8)).to(torch.bool)
    gathered = values.new_empty(group.size(), *values.shape)
    dist.all_gather_single(gathered.flatten(0, 1) if values.dim() else gathered, values.contiguous(), group=group)
    return gathered


def all_gather_text(text: str) -> list[str]:
    """Return the texts of all ranks, in rank order, on every rank.

    Use it for short texts: memory grows with the number of ranks.
    """
    if not dist.is_initialized():
        return [text]
    own_bytes = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([own_bytes.numel()]))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: own_bytes.numel()] = own_bytes
    rows = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(rows, padded)
    return [_decode(row, int(size)) for row, size in zip(rows, sizes, strict=True)]


def broadcast_first_text(group: Group, text: str) -> str:
    """Return the text of the first rank whose text is not empty, or "" if all are empty, on every rank of the group.

    Memory does not grow with the size of the group.
    """
    if group is None:
        return text
    first = torch.tensor([group.rank() if text else group.size()])
    dist.all_reduce(first, dist.ReduceOp.MIN, group=group)
    source = int(first)
    if source == group.size():
        return ""
    own_bytes = torch.frombuffer(bytearray(text.encode("utf-8", "replace") or b" "), dtype=torch.uint8)
    size = torch.tensor([own_bytes.numel()])
    dist.broadcast(size, group=group, group_src=source)
    row = own_bytes if group.rank() == source else torch.zeros(int(size), dtype=torch.uint8)
    dist.broadcast(row, group=group, group_src=source)
    return bytes(row.tolist()).decode()


def new_host_group() -> Group:
    """Create a gloo group of all ranks with a timeout of one day, for collectives in a background thread.

    Every rank must call it. The result is None if there is only one rank.
    """
    if not dist.is_initialized():
        return None
    with gloo_lazy_init(True):
        group = dist.new_group(backend="gloo", timeout=timedelta(days=1), group_desc=BACKGROUND)
    assert isinstance(group, dist.ProcessGroup)
    connect_neighbours(group)
    return group


def barrier() -> None:
    """Wait until every rank has called this function."""
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1))


def _decode(row: Tensor, size: int) -> str:
    return bytes(row[:size].tolist()).decode().strip()
