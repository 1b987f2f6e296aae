"""One rank of `onecurve probe`."""

import sys
import time
from collections.abc import Callable
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, write_toml
from onecurve.describe.requests import ProbeRequest
from onecurve.device.device import local_device
from onecurve.device.world import World
from onecurve.measure.cluster_probe import measure_cluster


def probe_as_rank(request: str, _: Callable[[], bool]) -> Cluster | None:
    asked = from_json(ProbeRequest, request.encode(), "request")
    world = World.from_environment() or World()
    device = local_device(world.local_rank)
    say = _speaker(asked.quiet or world.rank > 0)
    world.join(device)
    try:
        cluster = measure_cluster(world, device, say)
    finally:
        world.leave()
    if world.rank > 0:
        return None
    write_toml(cluster, Path(asked.out))
    return cluster


def _speaker(quiet: bool) -> Callable[[str], None]:
    begin = time.perf_counter()

    def say(text: str) -> None:
        if not quiet:
            print(f"  {time.perf_counter() - begin:4.0f} s  {text}", file=sys.stderr, flush=True)

    return say
