"""Checks between hosts: they find each other in a common folder, and each connects to two others.

Each host leaves a file with its address and its versions, and answers connections. However many hosts there are, each
connects to two of them: the next one in the order of their names, and the first one.
"""

import json
import math
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from onecurve.describe.errors import OnecurveError
from onecurve.describe.health import HealthCheck

_PATTERN = ".doctor-host-*.json"
_CONNECT_SECONDS = 5.0
_CLOCK_SECONDS = 1.0
"""Times of records and of a study's leases are compared between hosts; runs themselves do not depend on clocks."""
_POLL_SECONDS = 0.2
_OLD_SECONDS = 600.0


@dataclass(frozen=True)
class Peer:
    """What a host says about itself."""

    name: str
    host: str
    address: str
    port: int
    versions: dict[str, str]


def peer_checks(
    folder: Path,
    hosts: int,
    address: str,
    versions: dict[str, str],
    patience: float,
    say: Callable[[str], None],
    *,
    folder_needed: bool = True,
) -> Iterator[HealthCheck]:
    """Meet the other hosts, and compare with two of them. Runs of hosts that meet elsewhere need no common folder."""
    with _answering(address) as listener:
        own = Peer(secrets.token_hex(8), socket.gethostname(), address, listener.getsockname()[1], versions)
        file = folder / _PATTERN.replace("*", own.name)
        try:
            file.write_text(json.dumps(asdict(own)), encoding="utf-8")
            _remove_old(folder, file)
            peers = _wait_for_all(folder, hosts, patience, say)
            yield _all_there(folder, peers, hosts, folder_needed)
            yield from _compared(own, peers)
            _wait_for_others(folder, own)
        finally:
            file.unlink(missing_ok=True)


def _wait_for_all(folder: Path, hosts: int, patience: float, say: Callable[[str], None]) -> list[Peer]:
    deadline, seen = time.monotonic() + patience, 0
    while True:
        peers = _peers(folder)
        if len(peers) != seen:
            seen = len(peers)
            say(
                f"{seen} of {hosts} hosts are here" + ("; start the same command on the others" if seen < hosts else "")
            )
        if seen >= hosts or time.monotonic() > deadline:
            return peers
        time.sleep(_POLL_SECONDS)


def _wait_for_others(folder: Path, own: Peer) -> None:
    """Answer until the others have compared themselves too, or had time enough for it."""
    deadline = time.monotonic() + 3 * _CONNECT_SECONDS
    (folder / f".doctor-done-{own.name}").touch()
    while time.monotonic() < deadline:
        if all((folder / f".doctor-done-{peer.name}").exists() for peer in _peers(folder)):
            break
        time.sleep(_POLL_SECONDS)
    (folder / f".doctor-done-{own.name}").unlink(missing_ok=True)


def _peers(folder: Path) -> list[Peer]:
    found = []
    for path in folder.glob(_PATTERN):
        with suppress(OSError, ValueError, TypeError):  # written just now, or removed
            found.append(Peer(**json.loads(path.read_text(encoding="utf-8"))))
    return sorted(found, key=lambda peer: (peer.host, peer.name))


def _remove_old(folder: Path, own: Path) -> None:
    """Remove what a check has left that was killed. Times are those of the file system, not of the hosts."""
    begin = own.stat().st_mtime
    for path in folder.glob(".doctor-*"):
        with suppress(OSError):
            if path.stat().st_mtime < begin - _OLD_SECONDS:
                path.unlink()


def _all_there(folder: Path, peers: list[Peer], hosts: int, folder_needed: bool) -> HealthCheck:
    text = f"{len(peers)} of {hosts} hosts see {folder}: {', '.join(peer.host for peer in peers[:8])}"
    if len(peers) < hosts and not folder_needed:
        fix = (
            "the others were not compared with this host. If the hosts share no folder, give the job a place for "
            'checkpoints that all reach: oc.Save(to="s3://…")'
        )
        return HealthCheck("shared folder", "note", text, fix)
    if len(peers) < hosts:
        fix = "start the same command on every host; if you did, the folder is not shared: mount it, or use --join"
        return HealthCheck("shared folder", "problem", text, fix)
    return HealthCheck("shared folder", "ok", text)


def _compared(own: Peer, peers: list[Peer]) -> Iterator[HealthCheck]:
    place = next(index for index, peer in enumerate(peers) if peer.name == own.name)
    for peer in {peers[0].name: peers[0], (after := peers[(place + 1) % len(peers)]).name: after}.values():
        if peer.name == own.name:
            continue
        different = {name for name in own.versions if own.versions[name] != peer.versions.get(name)}
        if different:
            text = "; ".join(f"{name} {own.versions[name]} here, {peer.versions.get(name)} there" for name in different)
            yield HealthCheck(f"versions on {peer.host}", "problem", text, "install the same versions on all hosts")
        yield _connection(peer)


def _connection(peer: Peer) -> HealthCheck:
    name = f"connection to {peer.host}"
    begin = time.time()
    try:
        with socket.create_connection((peer.address, peer.port), timeout=_CONNECT_SECONDS) as connection:
            theirs = float(connection.recv(64) or b"nan")
            if not math.isfinite(theirs):
                raise ValueError("the connection was closed")
    except (OSError, ValueError) as error:
        fix = f"is there a firewall between the hosts, and does {peer.address} lead to {peer.host}?"
        return HealthCheck(name, "problem", f"{peer.address}:{peer.port}: {error}", fix)
    end = time.time()
    difference = theirs - (begin + end) / 2
    text = f"{peer.address} answers after {1000 * (end - begin):.1f} ms; clocks differ by {abs(difference):.2f} s"
    if abs(difference) > _CLOCK_SECONDS:
        return HealthCheck(name, "problem", text, "synchronize the clocks (chrony, NTP)")
    return HealthCheck(name, "ok", text)


@contextmanager
def _answering(address: str) -> Iterator[socket.socket]:
    """Tell the time to whoever connects."""
    try:
        listener = socket.create_server((address, 0))
    except OSError as error:
        raise OnecurveError(f"doctor: no port can be opened at {address} ({error.strerror})") from None

    def answer() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection, suppress(OSError):
                    connection.sendall(repr(time.time()).encode())

    threading.Thread(target=answer, daemon=True).start()
    try:
        yield listener
    finally:
        listener.close()
