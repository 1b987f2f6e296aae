"""The hosts that joined a run, as one cluster to plan for. This module never imports torch: keepers use it."""

import hashlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from onecurve.describe.cluster import Cluster, HostGroup, Link
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.host import HostRegistration
from onecurve.device.files import cache_folder, replace_file

_log = logging.getLogger(__name__)


def similar_first(hosts: Mapping[str, HostRegistration]) -> dict[str, HostRegistration]:
    """Order hosts so that similar ones are neighbours, beginning with those that are similar to the first."""
    kinds: list[list[str]] = []
    for host, registration in hosts.items():
        own = registration.devices.groups[0]
        for kind in kinds:
            if hosts[kind[0]].devices.groups[0].is_similar(own):
                kind.append(host)
                break
        else:
            kinds.append([host])
    return {host: hosts[host] for kind in kinds for host in kind}


def joined_cluster(hosts: Sequence[HostRegistration], link: Link) -> Cluster:
    """Return the cluster of these hosts. `link`: between them; it is the same for all.

    Neighbours that are similar form a group, which has the measurements of its first host, and the memory of the
    smallest.
    """
    groups: list[HostGroup] = []
    for host in hosts:
        own = replace(host.devices.groups[0], count=1, inter_host=link)
        if groups and groups[-1].is_similar(own):
            memory = min(groups[-1].device.memory, own.device.memory)
            device = replace(groups[-1].device, memory=memory)
            groups[-1] = replace(groups[-1], device=device, count=groups[-1].count + 1)
        else:
            groups.append(own)
    return Cluster(tuple(groups), hosts[0].devices.constants)


def known_link(hosts: Sequence[HostRegistration]) -> Link | None:
    """Return the link between these hosts as it was measured before, or None if it was not."""
    path = _link_file(hosts)
    try:
        return from_json(Link, path.read_bytes(), str(path))
    except FileNotFoundError:
        return None
    except (OnecurveError, OSError) as error:
        _log.info("the remembered link between the hosts cannot be used: %s", error)
        return None


def remember_link(hosts: Sequence[HostRegistration], link: Link) -> None:
    """Store the link between these hosts. If the cache folder cannot be written, the next run measures it again."""
    path = _link_file(hosts)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, [to_json(link).encode()])
    except OSError as error:
        _log.info("the link between the hosts is not remembered: %s", error)


def _link_file(hosts: Sequence[HostRegistration]) -> Path:
    names = "\n".join(sorted(f"{host.name} {host.devices.device_kind}" for host in hosts))
    return cache_folder() / f"link-{hashlib.sha256(names.encode()).hexdigest()[:16]}.json"
