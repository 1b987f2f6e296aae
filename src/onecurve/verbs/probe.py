"""onecurve probe: what do these machines really do? This side starts the ranks; probe_worker.py measures."""

import tempfile
from dataclasses import replace
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import read_toml, to_json, write_toml
from onecurve.describe.errors import InterruptError
from onecurve.describe.requests import ProbeRequest
from onecurve.device.device import local_cluster
from onecurve.device.world import World
from onecurve.launch.local import launch

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
    request = ProbeRequest(out=str(out), quiet=quiet)
    if World.from_environment() is not None:
        from onecurve.verbs.probe_worker import probe_as_rank

        return probe_as_rank(to_json(request), lambda: False)
    host = local_cluster()
    ranks = min(host.cores, _MAX_PROBE_RANKS) if host.device_kind == "cpu" else host.devices
    with tempfile.TemporaryDirectory(prefix="onecurve-probe-") as scratch:
        result = Path(scratch) / "cluster.toml"
        stopped = launch("onecurve.verbs.rank", ["probe", to_json(replace(request, out=str(result)))], ranks)
        if stopped is not None:
            raise InterruptError("interrupted before the probe was done", stopped)
        cluster = read_toml(Cluster, result)
    write_toml(cluster, Path(out))
    return cluster


def probe_this_host() -> Cluster:
    """Measure this host without leaving a file behind."""
    with tempfile.TemporaryDirectory(prefix="onecurve-probe-") as folder:
        cluster = probe(Path(folder) / "cluster.toml")
    assert cluster is not None
    return cluster
