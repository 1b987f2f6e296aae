"""What a group of ranks reaches when it sends: latency, bandwidth, and how much of it is felt beside computing."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from onecurve.describe.cluster import Link
from onecurve.device.device import Device

_SMALL, _LARGE = 1 << 10, 1 << 22
_REPEATS = 5


def link_of(group: dist.ProcessGroup, device: Device, messages: int) -> Link:
    """Of an all-reduce among the group, as the formula for rings takes it: every byte (n − 1)/n times twice, and twice
    so many messages one after the other; and of its two halves by themselves."""
    members = group.size()
    reduce, gather, scatter = (
        [_seconds(group, device, send, size) for size in (_SMALL, _LARGE)] for send in (_reduce, _gather, _scatter)
    )
    small, large = reduce
    bandwidth = 2 * _LARGE * (members - 1) / members / max(large - small, 1e-9)
    halves = [
        (2 * each[0] / small, 2 * max(each[1] - each[0], 1e-9) / max(large - small, 1e-9)) for each in (gather, scatter)
    ]
    return Link(small / (2 * messages), bandwidth, _felt(group, device, large), *halves)


Send = Callable[[dist.ProcessGroup, torch.Tensor, torch.Tensor], object]
"""Of a whole tensor, and the part of it that a rank has."""


def _reduce(group: dist.ProcessGroup, whole: torch.Tensor, _: torch.Tensor) -> object:
    return dist.all_reduce(whole, group=group)


def _gather(group: dist.ProcessGroup, whole: torch.Tensor, part: torch.Tensor) -> object:
    return dist.all_gather_single(whole, part, group=group)


def _scatter(group: dist.ProcessGroup, whole: torch.Tensor, part: torch.Tensor) -> object:
    return dist.reduce_scatter_single(part, whole, group=group)


def _seconds(group: dist.ProcessGroup, device: Device, send: Send, size: int) -> float:
    members, found = group.size(), []
    part = torch.zeros(size // 4 // members, device=device.torch_device)
    whole = torch.zeros(members * part.numel(), device=device.torch_device)
    for _ in range(1 + (_REPEATS if size == _LARGE else 8 * _REPEATS)):
        dist.barrier(group)
        begin = time.perf_counter()
        send(group, whole, part)
        device.wait()
        found.append(time.perf_counter() - begin)
    return _slowest(group, statistics.median(found[1:]), device)


def _felt(group: dist.ProcessGroup, device: Device, sent: float) -> float:
    """The part of what is hidden behind computing that lengthens it all the same."""
    made = torch.randn(256, 256, device=device.torch_device)
    values = torch.zeros(_LARGE // 4, device=device.torch_device)
    one = _compute(made, device, 8) / 8
    calls = max(4, round(sent / one))
    alone = _compute(made, device, calls)
    dist.barrier(group)
    begin = time.perf_counter()
    work = dist.all_reduce(values, group=group, async_op=True)
    _compute(made, device, calls)
    assert work is not None
    work.wait()
    device.wait()
    both = time.perf_counter() - begin
    felt = (both - max(alone, sent)) / min(alone, sent)
    return _slowest(group, min(1.0, max(0.0, felt)), device)


def _compute(made: torch.Tensor, device: Device, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        torch.mm(made, made)
    device.wait()
    return time.perf_counter() - begin


def _slowest(group: dist.ProcessGroup, value: float, device: Device) -> float:
    """All agree on the largest."""
    found = torch.tensor([value], dtype=torch.float64, device=device.torch_device)
    dist.all_reduce(found, dist.ReduceOp.MAX, group=group)
    return float(found)
