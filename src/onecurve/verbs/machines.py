"""The machines that a plan is for: by name, from a file, or these here, measured once and remembered."""

import contextlib
import os
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

from onecurve.checkpoint.local import replace_whole
from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import read_toml, to_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.fleet import parse_cluster
from onecurve.device.device import here

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
    remembered = _remembered()
    if remembered is not None:
        return remembered
    say("measuring this host, once: about 20 seconds")
    from onecurve.verbs.probe import probe  # which starts ranks: plans for other machines do not wait for that

    with tempfile.TemporaryDirectory(prefix="onecurve-probe-") as folder:
        found = probe(Path(folder) / "cluster.toml")
    assert found is not None
    remember(found)
    return found


def remember(cluster: Cluster) -> None:
    """What is known of this host now; where it cannot be written it is measured again."""
    path = _place()
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_whole(path, [to_toml(cluster).encode()])


def _remembered() -> Cluster | None:
    """None where it was never measured, by another version, or with other devices."""
    try:
        found = read_toml(Cluster, _place())
    except (OnecurveError, OSError):
        return None
    now = here()
    same = (found.device, found.devices, found.cores, found.memory) == (now.device, now.devices, now.cores, now.memory)
    return found if same else None


def _place() -> Path:
    """One for each number of cores that this process may use: a container may have fewer tomorrow."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "onecurve" / f"{socket.gethostname()}-{len(os.sched_getaffinity(0))}.toml"
