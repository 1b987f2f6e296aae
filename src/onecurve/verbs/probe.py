"""onecurve probe: what do these machines really do? This side starts the ranks; probe_worker.py measures."""

from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json, write_toml
from onecurve.describe.errors import InterruptError
from onecurve.describe.requests import ProbeRequest
from onecurve.device.device import local_cluster
from onecurve.device.world import World
from onecurve.launch.local import LocalRanks

_MAX_PROBE_RANKS = 16
"""Ranks that measure a CPU host; more would add little."""


def probe(out: str | Path = "cluster.toml", *, quiet: bool = True) -> Cluster | None:
    """Measure this host, or under torchrun all hosts of the world: matrix products, memory, links.

    Args:
        out: Path of the cluster.toml to write. Default: `"cluster.toml"`.
        quiet: Print nothing. Default: True.

    Returns:
        The measured cluster; None on all ranks of torchrun but rank 0.

    Example::

        cluster = oc.probe("cluster.toml")
        print(cluster.devices, "devices of kind", cluster.device_kind)
    """
    world = World.from_environment()
    if world is not None:
        from onecurve.verbs.probe_worker import probe_as_rank

        cluster = probe_as_rank(ProbeRequest(quiet=quiet), world)
    else:
        cluster = probe_this_host(quiet=quiet)
    if cluster is not None:
        write_toml(cluster, Path(out))
    return cluster


def probe_this_host(*, quiet: bool = True) -> Cluster:
    """Measure this host with ranks that are started for it."""
    host = local_cluster()
    ranks = min(host.cores, _MAX_PROBE_RANKS) if host.device_kind == "cpu" else host.devices
    with LocalRanks("onecurve.verbs.rank", "probe", to_json(ProbeRequest(quiet=quiet))) as launcher:
        ended = launcher.run(ranks)
    if ended.signal is not None or ended.results is None:
        raise InterruptError("interrupted before the probe was done", ended.signal or "SIGINT")
    return from_json(Cluster, ended.results[0].encode(), "what the ranks measured")
