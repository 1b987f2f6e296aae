"""One rank of `onecurve probe`."""

import sys
import time
from collections.abc import Callable

import torch.distributed as dist

from onecurve.describe.arithmetic import ceil_log2
from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.generation import Generation
from onecurve.describe.requests import ProbeRequest
from onecurve.device.device import local_device
from onecurve.device.world import World
from onecurve.launch.stop import Stop
from onecurve.measure.cluster_probe import measure_cluster
from onecurve.measure.links import measure_link


def probe_worker(request: str, _: Callable[[str], None]) -> Callable[[World, Stop, Generation], str]:
    """Make the worker of a launched rank. Its result is the cluster as JSON, on rank 0."""
    asked = from_json(ProbeRequest, request.encode(), "request")

    def work(world: World, _: Stop, __: Generation) -> str:
        cluster = probe_as_rank(asked, world)
        return to_json(cluster) if cluster is not None else ""

    return work


def link_worker(_: str, __: Callable[[str], None]) -> Callable[[World, Stop, Generation], str]:
    """Make the worker of a rank that measures the link between hosts with the only rank of each other host.

    Its result is the link as JSON.
    """

    def work(world: World, _: Stop, __: Generation) -> str:
        device = local_device(world.local_rank)
        world.join(device)
        assert dist.group.WORLD is not None
        link = measure_link(dist.group.WORLD, device, ceil_log2(world.size))
        world.leave()
        return to_json(link)

    return work


def probe_as_rank(asked: ProbeRequest, world: World) -> Cluster | None:
    """Measure the hosts of the world together with the other ranks; return the cluster on rank 0."""
    device = local_device(world.local_rank)
    say = _speaker(asked.quiet or world.rank > 0)
    world.join(device)
    cluster = measure_cluster(world, device, say)
    world.leave()
    return cluster if world.rank == 0 else None


def _speaker(quiet: bool) -> Callable[[str], None]:
    begin = time.perf_counter()

    def say(text: str) -> None:
        if not quiet:
            print(f"  {time.perf_counter() - begin:4.0f} s  {text}", file=sys.stderr, flush=True)

    return say
