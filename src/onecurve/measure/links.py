"""Measures the link of a group of ranks: latency, bandwidth, and the cost of overlapping communication with compute."""

import statistics
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from onecurve.describe.cluster import Link
from onecurve.device.device import Device

_SMALL_BYTES, _LARGE_BYTES = 1 << 10, 1 << 22
_MAX_BYTES = 1 << 30
_FILLING_SECONDS = 2e-3
"""A collective between accelerators that takes this long is limited by the link, not by its start."""
_MIN_ROWS, _MAX_ROWS = 256, 8192
_REPETITIONS = 5
_FLOAT_BYTES = 4


def measure_link(group: dist.ProcessGroup, device: Device, messages: int) -> Link:
    """Measure the link between the ranks of a group; every rank of the group must call this and gets the same result.

    Latency and bandwidth are computed from the times of a small and a large all-reduce, by the ring formula: every byte
    is sent 2(n − 1)/n times, in `2 * messages` sequential messages. All-gather and reduce-scatter are measured relative
    to half an all-reduce.
    """
    members, size = group.size(), _filling_size(group, device)
    all_reduce, all_gather, reduce_scatter = (
        [_collective_seconds(group, device, collective, nbytes) for nbytes in (_SMALL_BYTES, size)]
        for collective in (_all_reduce, _all_gather, _reduce_scatter)
    )
    small, large = all_reduce
    sending = _without_start(small, large)
    bandwidth = 2 * size * (members - 1) / members / sending
    all_gather_factors, reduce_scatter_factors = (
        (2 * seconds[0] / small, 2 * _without_start(*seconds) / sending) for seconds in (all_gather, reduce_scatter)
    )
    return Link(
        latency=small / (2 * messages),
        bandwidth=bandwidth,
        overlap_penalty=_overlap_penalty(group, device, size, large),
        all_gather_factors=all_gather_factors,
        reduce_scatter_factors=reduce_scatter_factors,
    )


def _without_start(small: float, large: float) -> float:
    """Seconds of a large collective without those of its start, which a small one takes.

    Where other programs use the cores, a small one may take as long as a large one. The difference then says nothing,
    and the whole time is at most twice too much.
    """
    return large - small if small < large / 2 else large


def _filling_size(group: dist.ProcessGroup, device: Device) -> int:
    """Bytes of the large collectives. The ranks agree, because they all know the time of the slowest."""
    size = _LARGE_BYTES
    while device.kind != "cpu" and size < _MAX_BYTES:
        if _collective_seconds(group, device, _all_reduce, size) >= _FILLING_SECONDS:
            break
        size *= 4
    return size


Collective = Callable[[dist.ProcessGroup, torch.Tensor, torch.Tensor], object]
"""Runs a collective on the full tensor and this rank's shard of it."""


def _all_reduce(group: dist.ProcessGroup, full: torch.Tensor, _: torch.Tensor) -> object:
    return dist.all_reduce(full, group=group)


def _all_gather(group: dist.ProcessGroup, full: torch.Tensor, shard: torch.Tensor) -> object:
    return dist.all_gather_single(full, shard, group=group)


def _reduce_scatter(group: dist.ProcessGroup, full: torch.Tensor, shard: torch.Tensor) -> object:
    return dist.reduce_scatter_single(shard, full, group=group)


def _collective_seconds(group: dist.ProcessGroup, device: Device, collective: Collective, size: int) -> float:
    """Median seconds of a collective on `size` bytes, on the slowest rank; the first call is not counted."""
    members, times = group.size(), []
    shard = torch.zeros(size // _FLOAT_BYTES // members, device=device.torch_device)
    full = torch.zeros(members * shard.numel(), device=device.torch_device)
    for _ in range(1 + (_REPETITIONS if size >= _LARGE_BYTES else 8 * _REPETITIONS)):
        dist.barrier(group)
        begin = time.perf_counter()
        collective(group, full, shard)
        device.wait()
        times.append(time.perf_counter() - begin)
    return _max_over_ranks(group, statistics.median(times[1:]), device)


def _overlap_penalty(group: dist.ProcessGroup, device: Device, size: int, communication: float) -> float:
    """Fraction, from 0 to 1, of overlapped communication time that still slows compute.

    `communication`: seconds of an all-reduce of `size` bytes that runs alone.
    """
    matrix = _filling_matrix(device)
    values = torch.zeros(size // _FLOAT_BYTES, device=device.torch_device)
    matmul_seconds = _compute_seconds(matrix, device, 8) / 8
    calls = max(4, round(communication / matmul_seconds))
    compute = _compute_seconds(matrix, device, calls)
    dist.barrier(group)
    begin = time.perf_counter()
    work = dist.all_reduce(values, group=group, async_op=True)
    _compute_seconds(matrix, device, calls)
    assert work is not None
    work.wait()
    device.wait()
    overlapped = time.perf_counter() - begin
    penalty = (overlapped - max(compute, communication)) / min(compute, communication)
    return _max_over_ranks(group, min(1.0, max(0.0, penalty)), device)


def _filling_matrix(device: Device) -> torch.Tensor:
    """A matrix to multiply while a collective runs; on accelerators one whose product keeps the device busy."""
    rows = _MIN_ROWS
    if device.kind == "cpu":
        return torch.randn(rows, rows)
    while True:
        matrix = torch.randn(rows, rows, device=device.torch_device).to(torch.bfloat16)
        _compute_seconds(matrix, device, 1)  # warms up
        if rows >= _MAX_ROWS or _compute_seconds(matrix, device, 4) / 4 >= _FILLING_SECONDS / 10:
            return matrix
        rows *= 2


def _compute_seconds(matrix: torch.Tensor, device: Device, calls: int) -> float:
    begin = time.perf_counter()
    for _ in range(calls):
        torch.mm(matrix, matrix)
    device.wait()
    return time.perf_counter() - begin


def _max_over_ranks(group: dist.ProcessGroup, value: float, device: Device) -> float:
    maximum = torch.tensor([value], dtype=torch.float64, device=device.torch_device)
    dist.all_reduce(maximum, dist.ReduceOp.MAX, group=group)
    return float(maximum)
