"""Devices by name, for clusters that one does not have yet."""

import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from onecurve.describe.cluster import DeviceSpec, HostGroup, Link
from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError

_INSIDE, _BETWEEN = 3e-6, 8e-6
"""Seconds before the first byte: NVLink-class links, and a network with remote memory access."""


def hosts_of(name: str, count: int, devices: int | None = None) -> HostGroup:
    """So many hosts of a device in the catalogue; of those that a short name begins, the one with the most memory."""
    entry = _entry(name)
    full, known = entry
    spec = DeviceSpec(
        full,
        "cuda",
        known["memory"],
        known["memory_bandwidth"],
        known["flops"],
        known["matmul_efficiency"],
        known["attention_efficiency"],
    )
    inside, network = Link(_INSIDE, known["intra_host_bandwidth"]), Link(_BETWEEN, known["inter_host_bandwidth"])
    return HostGroup(spec, count, devices or known["devices_per_host"], 0, inside, network)


def _entry(name: str) -> tuple[str, dict[str, Any]]:
    known = _catalogue()
    if name in known:
        return name, known[name]
    begins = [each for each in known if _plain(each).startswith(_plain(name))]
    if not begins:
        raise OnecurveError(f"device {name!r} is not in the catalogue ({nearest(name, known)})")
    largest = max(begins, key=lambda each: known[each]["memory"])
    return largest, known[largest]


def _plain(name: str) -> str:
    """As people type it: `rtx4090`."""
    return name.lower().replace(" ", "").replace("-", "")


@cache
def _catalogue() -> dict[str, dict[str, Any]]:
    return tomllib.loads(files("onecurve.describe").joinpath("devices.toml").read_text(encoding="utf-8"))
