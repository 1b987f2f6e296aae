"""The cluster a plan is for: a catalogue name, a cluster.toml, or this host, which is measured once and cached."""

import logging
import os
import socket
from collections.abc import Callable
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.cluster_shorthand import parse_cluster
from onecurve.describe.convert import read_toml, to_toml
from onecurve.describe.errors import OnecurveError
from onecurve.device.device import local_cluster
from onecurve.device.files import replace_file

HERE = "here"
Say = Callable[[str], None]
"""Called with a short text that says what is being done."""
MeasureHost = Callable[[], Cluster]
"""Measures this host; handed in by verbs/, because it starts processes."""

_log = logging.getLogger(__name__)


def find_cluster(cluster: str | Cluster, measure: MeasureHost, say: Say) -> Cluster:
    """Return the cluster that `--cluster` names: `here`, a path that ends in .toml, or a shorthand such as 2x8xH100."""
    if isinstance(cluster, Cluster):
        return cluster
    if cluster == HERE:
        return this_host(measure, say)
    return read_toml(Cluster, Path(cluster)) if cluster.endswith(".toml") else parse_cluster(cluster)


def source_of(cluster: str | Cluster) -> str:
    """Return where the speeds of the cluster that `--cluster` names come from, for a person."""
    if isinstance(cluster, Cluster):
        return "the given Cluster"
    if cluster == HERE:
        return "measured on this host"
    return cluster if cluster.endswith(".toml") else "the catalogue of devices; measure yours with onecurve probe"


def this_host(measure: MeasureHost, say: Say) -> Cluster:
    """Return this host's cached measurements; measure it if there are none."""
    cached = cached_host()
    if cached is not None:
        return cached
    say("measuring this host, once: about 20 seconds")
    cluster = measure()
    cache_host(cluster)
    return cluster


def cache_host(cluster: Cluster) -> None:
    """Store what is known about this host. If the cache folder cannot be written, the next plan measures again."""
    path = _cache_file()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [to_toml(cluster).encode()])
    except OSError as error:
        _log.info("this host's measurements are not cached: %s", error)


def cached_host() -> Cluster | None:
    """Return the cached measurements of this host, or None if there are none for its present devices."""
    path = _cache_file()
    if not path.is_file():
        return None
    try:
        cached = read_toml(Cluster, path)
    except (OnecurveError, OSError) as error:
        _log.info("the cached measurements of this host cannot be used: %s", error)
        return None
    now = local_cluster()
    return cached if _hardware(cached) == _hardware(now) else None


def _hardware(cluster: Cluster) -> tuple[str, int, int, int]:
    return cluster.device_kind, cluster.devices, cluster.cores, cluster.memory


def _cache_file() -> Path:
    """One file per number of usable cores, because a container's limit may change."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "onecurve" / f"{socket.gethostname()}-{len(os.sched_getaffinity(0))}.toml"
