"""A cluster by its short name: `2x8xH100` is two hosts of eight, `4xA100+4xV100` one host of each."""

import re

from onecurve.describe.catalogue import hosts_of
from onecurve.describe.cluster import Cluster, HostGroup
from onecurve.describe.errors import OnecurveError


def parse_cluster(text: str) -> Cluster:
    return Cluster(tuple(_hosts(part.strip()) for part in text.split("+")))


def _hosts(text: str) -> HostGroup:
    match = re.fullmatch(r"(?:(\d+)\s*[x×])?(?:(\d+)\s*[x×])?\s*(.+)", text)
    if match is None or not match[3]:
        raise OnecurveError(f"cluster {text!r}: cannot be read; write it like 2x8xH100: hosts × devices × name")
    outer, inner, name = match.groups()
    if "0" in (outer, inner):
        raise OnecurveError(f"cluster {text!r}: it has no devices")
    if outer is not None and inner is not None:
        return hosts_of(name, int(outer), int(inner))
    devices = int(outer or 1)
    whole = hosts_of(name, 1).devices_per_host
    if devices <= whole:
        return hosts_of(name, 1, devices)
    if devices % whole:
        raise OnecurveError(
            f"cluster {text!r}: {devices} devices are not whole hosts of {whole}; write hosts × devices × name"
        )
    return hosts_of(name, devices // whole)


def cluster_text(cluster: Cluster) -> str:
    """`2 hosts × 8 H100-80GB-SXM`"""
    return " + ".join(map(_text, cluster.groups))


def _text(group: HostGroup) -> str:
    hosts = f"{group.count:,} host{'s' if group.count > 1 else ''}"
    if group.kind == "cpu":
        return f"{hosts} × {group.cores_per_host} cores"
    return f"{hosts} × {group.devices_per_host} {group.device.name}"
