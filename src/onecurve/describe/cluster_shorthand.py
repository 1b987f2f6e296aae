"""The short form of a cluster: `2x8xH100` is two hosts of eight devices, `4xA100+4xV100` is one host of each kind."""

import re

from onecurve.describe.catalogue import hosts_of
from onecurve.describe.cluster import Cluster, HostGroup
from onecurve.describe.errors import OnecurveError
from onecurve.describe.units import counted


def parse_cluster(text: str) -> Cluster:
    """Parse the short form. `16xH100` gives as many full hosts as 16 devices need; `4xH100` is one host with four."""
    return Cluster(tuple(_hosts(part.strip()) for part in text.split("+")))


def _hosts(text: str) -> HostGroup:
    match = re.fullmatch(r"(?:(\d+)\s*[x×])?(?:(\d+)\s*[x×])?\s*(.+)", text)
    if match is None or not match[3]:
        raise OnecurveError(
            f"cluster {text!r}: cannot be read; write HOSTSxDEVICESxNAME, for example 2x8xH100 or 8xA100"
        )
    outer, inner, name = match.groups()
    if "0" in (outer, inner):
        raise OnecurveError(f"cluster {text!r}: has no devices; every count must be at least 1")
    if outer is not None and inner is not None:
        return hosts_of(name, int(outer), int(inner))
    devices = int(outer or 1)
    per_host = hosts_of(name, 1).devices_per_host
    if devices <= per_host:
        return hosts_of(name, 1, devices)
    if devices % per_host:
        raise OnecurveError(
            f"cluster {text!r}: {devices} devices do not fill hosts of {per_host}; use a multiple of {per_host}, or "
            "write HOSTSxDEVICESxNAME"
        )
    return hosts_of(name, devices // per_host)


def cluster_text(cluster: Cluster) -> str:
    """Return a description for a person: `2 hosts × 8 H100-80GB-SXM`."""
    return " + ".join(map(_text, cluster.groups))


def _text(group: HostGroup) -> str:
    hosts = counted(group.count, "host")
    if group.kind == "cpu":
        return f"{hosts} × {counted(group.cores_per_host, 'core')}"
    return f"{hosts} × {group.devices_per_host} {group.device.name}"
