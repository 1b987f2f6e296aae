"""The machines that a plan is for: by name, from a file, or these here, measured once and remembered."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import read_toml, write_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.fleet import parse_cluster
from onecurve.verbs.probe import probe

HERE = "here"
Say = Callable[[str], None]


def find_cluster(wish: str | Cluster, say: Say) -> Cluster:
    if isinstance(wish, Cluster):
        return wish
    if wish == HERE:
        return this_host(say)
    return read_toml(Cluster, Path(wish)) if wish.endswith(".toml") else parse_cluster(wish)


def this_host(say: Say) -> Cluster:
    """Measured when it is first asked for."""
    path = _place()
    try:
        return read_toml(Cluster, path)
    except OnecurveError:  # never measured, or by another version
        say("measuring this host, once: about 20 seconds")
        path.parent.mkdir(parents=True, exist_ok=True)
        found = probe(path)
        assert found is not None
        return found


def remember(cluster: Cluster) -> None:
    """What is known of this host now."""
    write_toml(cluster, _place())


def _place() -> Path:
    """One for each number of cores that this process may use: a container may have fewer tomorrow."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "onecurve" / f"{socket.gethostname()}-{len(os.sched_getaffinity(0))}.toml"
