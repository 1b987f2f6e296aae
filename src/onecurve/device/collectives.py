"""What ranks tell each other outside the engines' own collectives: sums of numbers, and short texts. No pickle."""

from collections.abc import Sequence
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

Group = dist.ProcessGroup | None
"""None is a group of one."""


def all_reduce_sum(group: Group, values: Tensor) -> Tensor:
    """Sum `values` over the group, in place; every rank gets the same bits."""
    if group is not None:
        dist.all_reduce(values, group=group)
    return values


def all_reduce_sum_among(group: Group, members: Sequence[int], values: Tensor) -> Tensor:
    """The same over some ranks of the group, which alone call it: the first of them adds, and sends the sum back."""
    if group is None or len(members) == group.size():
        return all_reduce_sum(group, values)
    first, *others = members
    if group.rank() != first:
        dist.send(values, group=group, group_dst=first)
        dist.recv(values, group=group, group_src=first)
        return values
    part = torch.empty_like(values)
    for other in others:
        dist.recv(part, group=group, group_src=other)
        values += part
    for other in others:
        dist.send(values, group=group, group_dst=other)
    return values


def all_gather_text(text: str) -> list[str]:
    """Every rank's text, on every rank, in the order of ranks. For short reports: memory grows with the world."""
    if not dist.is_initialized():
        return [text]
    mine = torch.frombuffer(bytearray(text.encode() or b" "), dtype=torch.uint8)
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([mine.numel()]))
    longest = max(int(size) for size in sizes)
    padded = torch.zeros(longest, dtype=torch.uint8)
    padded[: mine.numel()] = mine
    rows = [torch.zeros(longest, dtype=torch.uint8) for _ in sizes]
    dist.all_gather(rows, padded)
    return [_decode(row, int(size)) for row, size in zip(rows, sizes, strict=True)]


def broadcast_first_text(group: Group, text: str) -> str:
    """The first rank's text that is not empty, on every rank of the group; memory does not grow with the group."""
    if group is None:
        return text
    first = torch.tensor([group.rank() if text else group.size()])
    dist.all_reduce(first, dist.ReduceOp.MIN, group=group)
    speaker = int(first)
    if speaker == group.size():
        return ""
    mine = torch.frombuffer(bytearray(text.encode("utf-8", "replace") or b" "), dtype=torch.uint8)
    size = torch.tensor([mine.numel()])
    dist.broadcast(size, group=group, group_src=speaker)
    row = mine if group.rank() == speaker else torch.zeros(int(size), dtype=torch.uint8)
    dist.broadcast(row, group=group, group_src=speaker)
    return bytes(row.tolist()).decode()


def new_host_group() -> Group:
    """A group of all ranks for a thread of its own, on the host, that may wait long; every rank must call it."""
    if not dist.is_initialized():
        return None
    group = dist.new_group(backend="gloo", timeout=timedelta(days=1))
    assert isinstance(group, dist.ProcessGroup)
    return group


def barrier() -> None:
    """Wait until every rank is here."""
    if dist.is_initialized():
        dist.all_reduce(torch.zeros(1))


def _decode(row: Tensor, size: int) -> str:
    return bytes(row[:size].tolist()).decode().strip()


def subgroup(ranks: Sequence[int]) -> Group:
    """A group of these ranks; every rank of the world must call it. None for a group of one."""
    if not dist.is_initialized():
        return None
    if len(ranks) == dist.get_world_size():
        return dist.group.WORLD
    group = dist.new_group(list(ranks))
    return group if len(ranks) > 1 and isinstance(group, dist.ProcessGroup) else None


def group_containing(groups: Sequence[Sequence[int]], rank: int) -> Group:
    """Of groups that have no rank in common, the one that this rank is in; every rank of the world must call it.

    Not by torch's `use_local_synchronization`: it names a group after how many others a rank is in, so that ranks which
    differ in that wait for each other forever.
    """
    found = [(ranks, subgroup(ranks)) for ranks in groups]
    return next((group for ranks, group in found if rank in ranks), None)
