"""What a group of ranks reaches when it sends: latency, bandwidth, and how much of it is felt beside computing."""

import time

import torch
import torch.distributed as dist

from onecurve.describe.cluster import Link
from onecurve.device.device import Device

_SMALL, _LARGE = 1 << 10, 1 << 22
_REPEATS = 5


def link_of(group: dist.ProcessGroup, device: Device) -> Link:
    """Of an all-reduce among the group, as the formula for rings takes it: twice (n − 1) messages one after the other,
    and every byte (n − 1)/n times twice."""
    members = group.size()
    small, large = (_all_reduce(group, device, size) for size in (_SMALL, _LARGE))
    latency = small / (2 * (members - 1))
    sent = max(large - small, 1e-9)
    return Link(latency, 2 * _LARGE * (members - 1) / members / sent, _felt(group, device, large))


def _all_reduce(group: dist.ProcessGroup, device: Device, size: int) -> float:
    values = torch.zeros(size // 4, device=device.torch_device)
    found = []
    for _ in range(_REPEATS + 1):
        dist.barrier(group)
        begin = time.perf_counter()
        dist.all_reduce(values, group=group)
        device.wait()
        found.append(time.perf_counter() - begin)
    return _slowest(group, sorted(found[1:])[_REPEATS // 2], device)


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
