"""Checks of the place where hosts meet: HOST:PORT, or etcd."""

import errno
import socket
import time
from collections.abc import Iterator

from onecurve.coordination.errors import CoordinationError
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.coordination.etcd_gateway import EtcdGateway
from onecurve.describe.errors import OnecurveError
from onecurve.describe.health import HealthCheck

_SECONDS = 5.0


def meeting_place_checks(where: str) -> Iterator[HealthCheck]:
    """Whether this host reaches the place of `--join`, or is that place."""
    if where.startswith(("etcd://", "etcds://")):
        yield _etcd(where)
    else:
        yield _address(where)


def _etcd(where: str) -> HealthCheck:
    begin = time.perf_counter()
    try:
        address = EtcdAddress.parse(where)
        found = EtcdGateway(address, timeout=_SECONDS).call("/v3/maintenance/status", {})
    except (CoordinationError, OnecurveError) as error:
        return HealthCheck(
            "etcd", "problem", str(error), "is it started, and does its address lead to it from this host?"
        )
    milliseconds = 1000 * (time.perf_counter() - begin)
    if not int(found.get("leader", 0)):
        return HealthCheck("etcd", "problem", "it has no leader", "start the other members: a majority must run")
    return HealthCheck("etcd", "ok", f"version {found.get('version', 'unknown')} answers after {milliseconds:.0f} ms")


def _address(where: str) -> HealthCheck:
    host, _, port = where.rpartition(":")
    if not host or not port.isdigit():
        return HealthCheck(
            "meeting place", "problem", f"{where} is not HOST:PORT", "give HOST:PORT, or etcd://HOST:PORT,…"
        )
    try:
        socket.getaddrinfo(host, int(port), socket.AF_INET)
        socket.create_server((host, int(port))).close()
    except socket.gaierror:
        return HealthCheck("meeting place", "problem", f"no address is known for {host}", "give its IPv4 address")
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            fix = "another program uses it, unless a run has begun there; give another port"
            return HealthCheck("meeting place", "note", f"{where}: {error.strerror}", fix)
    else:
        return HealthCheck("meeting place", "ok", f"{where} is this host, and the port is free: it would lead the run")
    try:
        socket.create_connection((host, int(port)), timeout=_SECONDS).close()
    except TimeoutError:
        return HealthCheck(
            "meeting place", "problem", f"{where} does not answer", "is there a firewall between the hosts?"
        )
    except OSError as error:
        text = f"{where}: {error.strerror or error}"
        return HealthCheck("meeting place", "note", text, "this is so until the run is started on that host")
    return HealthCheck("meeting place", "ok", f"{where} accepts connections")
