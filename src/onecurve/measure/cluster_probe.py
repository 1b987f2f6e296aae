"""Measures the machines of this world: matrix products, memory, the cores of a CPU host, links. All ranks take part."""

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
from onecurve.measure.links import link_of
from onecurve.measure.rates import LARGE, Rates, attention_rate, product_rates, rates

_ALIKE = 1.4
"""Hosts whose rates differ by less are one group."""
_TURNS, _DOUBTS = 5, 3
"""Measurements; and how often hosts are measured again that seem unlike, before that is believed."""
_CPU = Constants(
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
"""Where everything else is measured: what onecurve's own engine costs the host, in operations. Chosen on small models
with benchmarks/regret.py."""


def measure_cluster(world: World, device: Device, say: Callable[[str], None]) -> Cluster:
    """The same cluster on every rank. All ranks of the world must call this."""
    machine = local_cluster()
    say("products by size and precision")
    products = _products(world, device, machine.cores)
    overhead = float(resident_bytes()) if device.kind == "cpu" else HostGroup(DeviceSpec("")).rank_overhead_bytes
    seen = _crowded(world, device, machine.cores, say)
    links = _links(world, device, say)
    count = world.local_size if device.kind != "cpu" else machine.cores

    def hosts() -> list[HostGroup]:
        spec, splits = _spec(device, machine, products, seen)
        own = HostGroup(spec, 1, count, machine.cores, *links, None, splits, overhead)
        every = [from_plain(HostGroup, json.loads(text), "probe") for text in all_gather_text(to_json(own))]
        return every[:: world.local_size]

    found = _groups(hosts())
    for _ in range(_DOUBTS if device.kind == "cpu" else 0):
        if len(found) == 1:
            break
        say("hosts differ: once more")
        seen = [_undisturbed(pair) for pair in zip(seen, _crowded(world, device, machine.cores, say), strict=True)]
        found = _groups(hosts())
    return Cluster(found, _CPU if device.kind == "cpu" else Constants())


@dataclass(frozen=True)
class _Products:
    """What large and small products reach on one core, and attention."""

    by_size: dict[str, dict[str, float]]
    attention: float


def _products(world: World, device: Device, cores: int) -> _Products:
    """The first rank of a host measures alone."""
    alone = world.local_rank == 0
    if device.kind == "cpu":
        pin_to_cores(world.local_rank, cores, 1)
    found = _Products(product_rates(device), attention_rate(device)) if alone else _Products({"fp32": {"1": 1.0}}, 1.0)
    barrier()
    return found


def _spec(
    device: Device, machine: Cluster, products: _Products, seen: Sequence[Rates]
) -> tuple[DeviceSpec, tuple[CoreSplit, ...]]:
    """`seen`: one rank alone, then all of them in groups of cores."""
    single, *others = seen
    by_size = products.by_size
    known = by_size["fp32"].get(str(LARGE))
    if known and device.kind == "cpu":  # the best of several turns: a table made in one go may have been disturbed
        times = single.products / known
        by_size = {name: {size: times * rate for size, rate in each.items()} for name, each in by_size.items()}
    peak = {name: max(each.values()) for name, each in by_size.items()}
    fused = products.attention / peak["fp32" if device.kind == "cpu" else "bf16"] if known else 1.0
    name = "cpu" if device.kind == "cpu" else _name(device)
    operation = single.operation if device.kind == "cpu" else 0.0
    splits = tuple(
        CoreSplit(
            threads,
            each.products / single.products,
            each.bandwidth / single.bandwidth,
            each.operation / single.operation,
        )
        for threads, each in zip(divisors(machine.cores) if others else (), others, strict=True)
    )
    spec = DeviceSpec(name, device.kind, machine.memory, single.bandwidth, peak, 1.0, fused, by_size, operation)
    return spec, splits


def _crowded(world: World, device: Device, cores: int, say: Callable[[str], None]) -> list[Rates]:
    """One rank of a host alone, and all at work in groups of so many cores: in turn, again and again, since others use
    the machine too."""
    ways = [(1, 1)] + [(min(cores // threads, world.local_size), threads) for threads in divisors(cores)]
    if device.kind != "cpu":
        ways = ways[:1]
    seen: list[list[Rates]] = [[] for _ in ways]
    for turn in range(_TURNS):
        for number, (ranks, threads) in enumerate(ways):
            say(f"{ranks} × {threads} threads, {turn + 1} of {_TURNS}")
            seen[number].append(_at_work(world, device, cores, ranks, threads))
    if device.kind == "cpu":
        pin_to_cores(world.local_rank, world.local_size, 0)
    return [_undisturbed(each) for each in seen]


def _at_work(world: World, device: Device, cores: int, ranks: int, threads: int) -> Rates:
    """What a rank of this host reaches on average while so many of them are at work."""
    mine = Rates(0.0, 0.0, 0.0)
    barrier()
    if world.local_rank < ranks:
        if device.kind == "cpu":
            pin_to_cores(world.local_rank, cores // threads, threads)
        mine = rates(device)
    barrier()
    every = [json.loads(text) for text in all_gather_text(json.dumps([mine.products, mine.bandwidth, mine.operation]))]
    begin = world.rank - world.local_rank
    beside = every[begin : begin + ranks]
    return Rates(*(sum(each[n] for each in beside) / ranks for n in range(3)))


def _undisturbed(seen: Sequence[Rates]) -> Rates:
    """The best of each: what disturbs a measurement only ever makes it slower."""
    return Rates(
        max(each.products for each in seen),
        max(each.bandwidth for each in seen),
        min(each.operation for each in seen),
    )


def _links(world: World, device: Device, say: Callable[[str], None]) -> tuple[Link, Link]:
    """Among the ranks of a host, and among one rank of each host. Every rank makes every group."""
    inside = network = Link()
    size, hosts = world.local_size, world.size // world.local_size
    if size > 1:
        say("links inside a host")
        groups = [dist.new_group([host * size + rank for rank in range(size)]) for host in range(hosts)]
        inside = link_of(groups[world.rank // size], device, size - 1)
    if hosts > 1:
        say("links between hosts")
        group = dist.new_group([host * size for host in range(hosts)])
        if world.local_rank == 0:
            network = link_of(group, device, ceil_log2(hosts))
    return (inside if size > 1 else network), (network if hosts > 1 else inside)


def _groups(hosts: Sequence[HostGroup]) -> tuple[HostGroup, ...]:
    """Hosts that are alike, one after the other, together."""
    groups: list[list[HostGroup]] = []
    for each in hosts:
        if groups and _alike(groups[-1][0], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    return tuple(_together(group) for group in groups)


def _together(group: Sequence[HostGroup]) -> HostGroup:
    return replace(group[0], count=len(group))


def _alike(one: HostGroup, other: HostGroup) -> bool:
    ratio = one.device.speed("fp32") / other.device.speed("fp32")
    return (
        1 / _ALIKE < ratio < _ALIKE
        and one.cores_per_host == other.cores_per_host
        and one.device.kind == other.device.kind
    )


def _name(device: Device) -> str:
    return str(torch.get_device_module(device.torch_device).get_device_name())
