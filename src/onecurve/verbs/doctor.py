"""onecurve doctor: are these machines ready to train?"""

from collections.abc import Callable, Iterator
from pathlib import Path

import onecurve
from onecurve.describe.errors import OnecurveError
from onecurve.describe.health import HealthCheck
from onecurve.device.network import own_address
from onecurve.health.folder import folder_checks
from onecurve.health.machine import extras_check, machine_checks
from onecurve.health.meeting_place import meeting_place_checks
from onecurve.health.peers import peer_checks
from onecurve.health.versions import version_facts

_PATIENCE = 60.0
_COMPARED = ("onecurve", "torch", "python")


def doctor(
    out: str | Path = "runs",
    *,
    hosts: int = 1,
    join: str | None = None,
    patience: float = _PATIENCE,
    say: Callable[[str], None] = lambda _: None,
) -> list[HealthCheck]:
    """Check this machine, or several hosts: torch, devices, memory, network, the folder of runs, Slurm, etcd.

    Args:
        out: Folder in which runs will be, which several hosts share. Default: `"runs"`.
        hosts: Number of hosts. Start the same command on each; they meet in the folder, compare their versions and
            clocks, and connect to each other. Default: 1.
        join: Where hosts meet that share no folder, as in `onecurve run --join`: `"HOST:PORT"` or `"etcd://HOST:PORT"`.
            Default: None.
        patience: Seconds to wait for the other hosts. Default: 60.0.
        say: A function that is called with short texts about the hosts. Default: they are dropped.

    Returns:
        What was checked, each with its state and, if something is wrong, with its fix.

    Example::

        for check in oc.doctor():
            print(check.state, check.name, check.text, check.fix)
    """
    if hosts < 1:
        raise OnecurveError(f"doctor: hosts = {hosts}; it must be at least 1")
    return list(_checks(Path(out), hosts, join, patience, say))


def versions() -> dict[str, str]:
    """What is installed, as a bug report needs it."""
    return version_facts(onecurve.__version__)


def _checks(
    folder: Path, hosts: int, join: str | None, patience: float, say: Callable[[str], None]
) -> Iterator[HealthCheck]:
    yield HealthCheck("onecurve", "ok", onecurve.__version__)
    yield from machine_checks()
    yield extras_check()
    yield from folder_checks(folder)
    if join is not None:
        yield from meeting_place_checks(join)
    if hosts > 1:
        compared = {name: versions()[name].partition(" (")[0] for name in _COMPARED}  # without the interpreter's path
        yield from peer_checks(folder, hosts, own_address(), compared, patience, say, folder_needed=join is None)
