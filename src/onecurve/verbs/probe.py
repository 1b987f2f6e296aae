"""onecurve probe: what do these machines really do? This side starts the ranks; probe_worker.py measures."""

from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import from_json, to_json, write_toml
from onecurve.describe.errors import InterruptError
from onecurve.describe.requests import ProbeRequest
from onecurve.device.environment import is_rank_of_launcher
from onecurve.launch.local import LocalRanks
from onecurve.verbs.program import PROGRAM

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
    cluster = _probe_as_rank(quiet) if is_rank_of_launcher() else probe_this_host(quiet=quiet)
    if cluster is not None:
        write_toml(cluster, Path(out))
    return cluster


def _probe_as_rank(quiet: bool) -> Cluster | None:
    from onecurve.device.world import World
    from onecurve.verbs.probe_worker import probe_as_rank

    return probe_as_rank(ProbeRequest(quiet=quiet), World.from_environment() or World())


def probe_this_host(*, quiet: bool = True) -> Cluster:
    """Measure this host with ranks that are started for it."""
    request = to_json(ProbeRequest(quiet=quiet))
    with LocalRanks(PROGRAM, "probe", request) as launcher:
        host = from_json(Cluster, launcher.ask("devices", "{}").encode(), "devices")
        ranks = min(host.cores, _MAX_PROBE_RANKS) if host.device_kind == "cpu" else host.devices
        ended = launcher.run("probe", request, ranks)
    if ended.signal is not None or ended.results is None:
        raise InterruptError("interrupted before the probe was done", ended.signal or "SIGINT")
    return from_json(Cluster, ended.results[0].encode(), "what the ranks measured")
