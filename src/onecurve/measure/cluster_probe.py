"""Measures the hosts of the current process group: matmul rates, memory bandwidth, the cores of CPU hosts, and links.

All ranks take part. On CPU each host's cores are measured in groups of every possible size, because ranks that share a
host also share its memory bandwidth and clock. Other programs may run on the machine, so measurements are repeated and
the best one counts.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.distributed as dist

from onecurve.describe.arithmetic import ceil_log2, divisors
from onecurve.describe.cluster import Cluster, CoreSplit, DeviceSpec, HostGroup, Link
from onecurve.describe.constants import Constants
from onecurve.describe.convert import from_plain, to_json
from onecurve.device.collectives import all_gather_text, barrier
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import Device, local_cluster, resident_bytes
from onecurve.device.world import World
from onecurve.measure.links import measure_link
from onecurve.measure.rates import LARGE, Rates, attention_rate, matmul_rates, rates

_REPETITIONS = 5
_MAX_RETRIES = 3
"""How often CPU hosts that seem to differ are measured again before the difference is accepted."""
_CPU_CONSTANTS = Constants(
    matmul_efficiency=1.0,
    attention_efficiency=1.0,
    memory_efficiency=1.0,
    op_launch_seconds=0.0,
    collective_launch_ops=1.0,
    intra_host_efficiency=1.0,
    inter_host_efficiency=1.0,
    overlap_penalty=1.0,
    step_overhead_seconds=0.0,
    round_overhead_seconds=0.0,
    step_overhead_ops=200.0,
    round_overhead_ops=70.0,
    dtensor_dispatch_factor=8.0,
    fsdp_ops_per_parameter=17.0,
    split_backward_factor=2.3,
    full_recompute_factor=2.8,
    selective_recompute_factor=4.7,
    error=0.25,
)
"""Constants for measured CPU hosts. Efficiencies are 1 because the rates themselves are measured; the others are the
host time of onecurve's own engine, in units of the smallest operation, chosen on small models with
benchmarks/regret.py."""


def measure_cluster(world: World, device: Device, report: Callable[[str], None]) -> Cluster:
    """Measure all hosts of the world. Every rank must call this; every rank returns the same cluster.

    `report` is called with a line of text before each measurement.
    """
    machine = local_cluster()
    report("matrix products by size and precision")
    matmuls = _measure_matmuls(world, device, machine.cores)
    overhead = float(resident_bytes()) if device.kind == "cpu" else HostGroup(DeviceSpec("")).rank_overhead_bytes
    measured = _measure_splits(world, device, machine.cores, report)
    intra_host, inter_host = _measure_links(world, device, report)
    count = world.local_size if device.kind != "cpu" else machine.cores

    def gather_hosts() -> list[HostGroup]:
        spec, splits = _device_spec(device, machine, matmuls, measured)
        own = HostGroup(
            device=spec,
            count=1,
            devices_per_host=count,
            cores_per_host=machine.cores,
            intra_host=intra_host,
            inter_host=inter_host,
            core_splits=splits,
            rank_overhead_bytes=overhead,
        )
        of_all_ranks = [from_plain(HostGroup, json.loads(text), "probe") for text in all_gather_text(to_json(own))]
        return of_all_ranks[:: world.local_size]

    groups = _group_similar(gather_hosts())
    for _ in range(_MAX_RETRIES if device.kind == "cpu" else 0):
        if len(groups) == 1:
            break
        report("hosts differ: measuring again")
        repeated = _measure_splits(world, device, machine.cores, report)
        measured = [_best(pair) for pair in zip(measured, repeated, strict=True)]
        groups = _group_similar(gather_hosts())
    return Cluster(groups, _CPU_CONSTANTS if device.kind == "cpu" else Constants())


@dataclass(frozen=True)
class _MatmulRates:
    """FLOPs per second of matrix products and of fused attention; on CPU, of one core."""

    by_size: dict[str, dict[str, float]]
    """Precision → number of rows → FLOPs per second."""
    attention: float


def _measure_matmuls(world: World, device: Device, cores: int) -> _MatmulRates:
    """Measure on the first rank of each host while its other ranks wait; they return a placeholder."""
    if device.kind == "cpu":
        pin_to_cores(world.local_rank, cores, 1)
    if world.local_rank == 0:
        measured = _MatmulRates(matmul_rates(device), attention_rate(device))
    else:
        measured = _MatmulRates({"fp32": {"1": 1.0}}, 1.0)
    barrier()
    return measured


def _device_spec(
    device: Device, machine: Cluster, matmuls: _MatmulRates, measured: Sequence[Rates]
) -> tuple[DeviceSpec, tuple[CoreSplit, ...]]:
    """Combine the measurements. `measured`: the rates of one rank alone, then those of each split of the cores."""
    single, *shared = measured
    by_size = matmuls.by_size
    large_rate = by_size["fp32"].get(str(LARGE))
    if large_rate and device.kind == "cpu":
        # The table is measured once and may have been disturbed; `single` is the best of several measurements.
        factor = single.matmul / large_rate
        by_size = {name: {size: factor * rate for size, rate in sizes.items()} for name, sizes in by_size.items()}
    peak = {name: max(sizes.values()) for name, sizes in by_size.items()}
    attention = matmuls.attention / peak["fp32" if device.kind == "cpu" else "bf16"] if large_rate else 1.0
    splits = tuple(
        CoreSplit(
            threads,
            split.matmul / single.matmul,
            split.bandwidth / single.bandwidth,
            split.op_seconds / single.op_seconds,
        )
        for threads, split in zip(divisors(machine.cores) if shared else (), shared, strict=True)
    )
    spec = DeviceSpec(
        name="cpu" if device.kind == "cpu" else _device_name(device),
        kind=device.kind,
        memory=machine.memory,
        memory_bandwidth=single.bandwidth,
        flops=peak,
        matmul_efficiency=1.0,
        attention_efficiency=attention,
        matmul_rates=by_size,
        op_seconds=single.op_seconds if device.kind == "cpu" else 0.0,
    )
    return spec, splits


def _measure_splits(world: World, device: Device, cores: int, report: Callable[[str], None]) -> list[Rates]:
    """Rates of one rank alone; on CPU followed by the mean rates of ranks that divide the cores, for each group size.

    The measurements alternate and are repeated, so that other load on the machine does not always hit the same one.
    """
    splits = [(1, 1)] + [(min(cores // threads, world.local_size), threads) for threads in divisors(cores)]
    if device.kind != "cpu":
        splits = splits[:1]
    measured: list[list[Rates]] = [[] for _ in splits]
    for repetition in range(_REPETITIONS):
        for number, (ranks, threads) in enumerate(splits):
            report(f"{ranks} × {threads} threads, repetition {repetition + 1} of {_REPETITIONS}")
            measured[number].append(_mean_rates(world, device, cores, ranks, threads))
    if device.kind == "cpu":
        pin_to_cores(world.local_rank, world.local_size, 0)
    return [_best(repetitions) for repetitions in measured]


def _mean_rates(world: World, device: Device, cores: int, ranks: int, threads: int) -> Rates:
    """Mean rates of the first `ranks` ranks of this host, measured at the same time."""
    own = Rates(0.0, 0.0, 0.0)
    barrier()
    if world.local_rank < ranks:
        if device.kind == "cpu":
            pin_to_cores(world.local_rank, cores // threads, threads)
        own = rates(device)
    barrier()
    texts = all_gather_text(json.dumps([own.matmul, own.bandwidth, own.op_seconds]))
    of_all_ranks = [json.loads(text) for text in texts]
    first = world.rank - world.local_rank
    active = of_all_ranks[first : first + ranks]
    return Rates(*(sum(values[n] for values in active) / ranks for n in range(3)))


def _best(measured: Sequence[Rates]) -> Rates:
    """The best value of each rate: a disturbance can only make a measurement slower."""
    return Rates(
        max(each.matmul for each in measured),
        max(each.bandwidth for each in measured),
        min(each.op_seconds for each in measured),
    )


def _measure_links(world: World, device: Device, report: Callable[[str], None]) -> tuple[Link, Link]:
    """The link between the ranks of a host, and the link between hosts (measured by the first rank of each).

    Every rank creates every process group, as torch.distributed.new_group requires.
    """
    intra_host = inter_host = Link()
    size, hosts = world.local_size, world.size // world.local_size
    if size > 1:
        report("links within a host")
        groups = [dist.new_group([host * size + rank for rank in range(size)]) for host in range(hosts)]
        intra_host = measure_link(groups[world.rank // size], device, size - 1)
    if hosts > 1:
        report("links between hosts")
        group = dist.new_group([host * size for host in range(hosts)])
        if world.local_rank == 0:
            inter_host = measure_link(group, device, ceil_log2(hosts))
    return (intra_host if size > 1 else inter_host), (inter_host if hosts > 1 else intra_host)


def _group_similar(hosts: Sequence[HostGroup]) -> tuple[HostGroup, ...]:
    """Merge runs of neighbouring hosts that are similar; a group has the measurements of its first host."""
    groups: list[list[HostGroup]] = []
    for host in hosts:
        if groups and groups[-1][0].is_similar(host):
            groups[-1].append(host)
        else:
            groups.append([host])
    return tuple(replace(group[0], count=len(group)) for group in groups)


def _device_name(device: Device) -> str:
    return str(torch.get_device_module(device.torch_device).get_device_name())
