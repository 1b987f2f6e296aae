"""Devices by name, so that a job can be planned for hardware that is not at hand. The data is in devices.toml."""

import tomllib
from functools import cache
from importlib.resources import files
from itertools import accumulate
from typing import Any

from onecurve.describe.cluster import DeviceSpec, HostGroup, Link
from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError

_INTRA_HOST_LATENCY, _INTER_HOST_LATENCY = 3e-6, 8e-6
"""Seconds until the first byte arrives: over NVLink-class links, and over a network with RDMA."""


def hosts_of(name: str, count: int, devices: int | None = None) -> HostGroup:
    """Return `count` hosts with devices from the catalogue.

    The first words of a name are enough (`h100`); of several matches, the one with the most memory is selected.
    `devices` is the number of devices per host; by default it comes from the catalogue.
    """
    full_name, entry = _entry(name)
    spec = DeviceSpec(
        name=full_name,
        kind=entry.get("kind", "cuda"),
        memory=entry["memory"],
        memory_bandwidth=entry["memory_bandwidth"],
        flops=entry["flops"],
        matmul_efficiency=entry["matmul_efficiency"],
        attention_efficiency=entry["attention_efficiency"],
    )
    return HostGroup(
        device=spec,
        count=count,
        devices_per_host=devices or entry["devices_per_host"],
        cores_per_host=0,
        intra_host=Link(_INTRA_HOST_LATENCY, entry["intra_host_bandwidth"]),
        inter_host=Link(_INTER_HOST_LATENCY, entry["inter_host_bandwidth"]),
    )


def _entry(name: str) -> tuple[str, dict[str, Any]]:
    catalogue = _catalogue()
    typed = "".join(_words(name))
    # Whole words only: an L40 is not an L40S, and an A10 is neither an A10G nor an A100.
    matches = [full_name for full_name in catalogue if typed in accumulate(_words(full_name))]
    if not matches:
        known = f"known: {', '.join(catalogue)}"
        hint = nearest(name.upper(), catalogue)
        raise OnecurveError(f"device {name!r} is not in the catalogue ({hint if hint == known else f'{hint} {known}'})")
    largest = max(matches, key=lambda full_name: catalogue[full_name]["memory"])
    return largest, catalogue[largest]


def _words(name: str) -> list[str]:
    """The words of a name in lower case, as people type them: `rtx4090`."""
    return name.lower().replace("-", " ").split()


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("onecurve.describe").joinpath("devices.toml").read_text(encoding="utf-8"))
