"""One rank of `onecurve probe`."""

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from onecurve.describe.arithmetic import divisors
from onecurve.describe.cluster import Cluster, DeviceSpec, Hosts, Link, Split
from onecurve.describe.constants import Constants
from onecurve.describe.convert import from_plain, to_json, write_toml
from onecurve.device.cores import settle_on_cores
from onecurve.device.device import Device, here, local_device, resident
from onecurve.device.exchange import barrier, texts_of_all
from onecurve.device.world import World
from onecurve.measure.links import link_of
from onecurve.measure.rates import LARGE, Rates, attention_rate, product_rates, rates
from onecurve.predict.collective import doublings
from onecurve.verbs.probe import ProbeRequest

_ALIKE = 1.4
"""Hosts whose rates differ by less are one group."""
_TURNS, _DOUBTS = 5, 3
"""Measurements; and how often hosts are measured again that seem unlike, before that is believed."""
_CPU = Constants(
    matrix=1.0, attention=1.0, memory=1.0, launch=0.0, exchange=1.0, inside=1.0, network=1.0, slowdown=1.0,
    step=0.0, round=0.0, opening=200.0, turn=70.0, cut=8.0, parameter=17.0, parted=2.3, forgotten=2.8, watched=4.7,
    error=0.25,
)  # fmt: skip
"""Where everything else is measured: what onecurve's own engine costs the host, in operations. Chosen on small models
with benchmarks/regret.py."""


def probe_as_rank(request: str, _: Callable[[], bool]) -> Cluster | None:
    asked = from_plain(ProbeRequest, json.loads(request), "request")
    world = World.from_environment() or World()
    device = local_device(world.local_rank)
    say = _speaker(asked.quiet or world.rank > 0)
    world.join(device)
    try:
        cluster = look_around(world, device, say)
    finally:
        world.leave()
    if world.rank > 0:
        return None
    write_toml(cluster, Path(asked.out))
    return cluster


def look_around(world: World, device: Device, say: Callable[[str], None]) -> Cluster:
    """The same cluster on every rank. All ranks of the world must call this."""
    machine = here()
    say("products by size and precision")
    products = _products(world, device, machine.cores)
    overhead = float(resident()) if device.kind == "cpu" else Hosts(DeviceSpec("")).overhead
    seen = _crowded(world, device, machine.cores, say)
    links = _links(world, device, say)
    count = world.local_size if device.kind != "cpu" else machine.cores

    def hosts() -> list[Hosts]:
        spec, splits = _spec(device, machine, products, seen)
        own = Hosts(spec, 1, count, machine.cores, *links, None, splits, overhead)
        every = [from_plain(Hosts, json.loads(text), "probe") for text in texts_of_all(to_json(own))]
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
        settle_on_cores(world.local_rank, cores, 1)
    found = _Products(product_rates(device), attention_rate(device)) if alone else _Products({"fp32": {"1": 1.0}}, 1.0)
    barrier()
    return found


def _spec(
    device: Device, machine: Cluster, products: _Products, seen: Sequence[Rates]
) -> tuple[DeviceSpec, tuple[Split, ...]]:
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
        Split(
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
        settle_on_cores(world.local_rank, world.local_size, 0)
    return [_undisturbed(each) for each in seen]


def _at_work(world: World, device: Device, cores: int, ranks: int, threads: int) -> Rates:
    """What a rank of this host reaches on average while so many of them are at work."""
    mine = Rates(0.0, 0.0, 0.0)
    barrier()
    if world.local_rank < ranks:
        if device.kind == "cpu":
            settle_on_cores(world.local_rank, cores // threads, threads)
        mine = rates(device)
    barrier()
    every = [json.loads(text) for text in texts_of_all(json.dumps([mine.products, mine.bandwidth, mine.operation]))]
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
            network = link_of(group, device, doublings(hosts))
    return (inside if size > 1 else network), (network if hosts > 1 else inside)


def _groups(hosts: Sequence[Hosts]) -> tuple[Hosts, ...]:
    """Hosts that are alike, one after the other, together."""
    groups: list[list[Hosts]] = []
    for each in hosts:
        if groups and _alike(groups[-1][0], each):
            groups[-1].append(each)
        else:
            groups.append([each])
    return tuple(_together(group) for group in groups)


def _together(group: Sequence[Hosts]) -> Hosts:
    first = group[0]
    return Hosts(
        first.device, len(group), first.devices, first.cores, first.inside, first.network, None, first.splits,
        first.overhead,
    )  # fmt: skip


def _alike(one: Hosts, other: Hosts) -> bool:
    ratio = one.device.speed("fp32") / other.device.speed("fp32")
    return 1 / _ALIKE < ratio < _ALIKE and one.cores == other.cores and one.device.kind == other.device.kind


def _name(device: Device) -> str:
    return str(torch.get_device_module(device.torch_device).get_device_name())


def _speaker(quiet: bool) -> Callable[[str], None]:
    begin = time.perf_counter()

    def say(text: str) -> None:
        if not quiet:
            print(f"  {time.perf_counter() - begin:4.0f} s  {text}", file=sys.stderr, flush=True)

    return say
