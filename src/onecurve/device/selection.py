"""Which accelerators of this host a new process sees."""

import os
from collections.abc import Iterable

from onecurve.describe.errors import OnecurveError

_VARIABLES = {"cuda": "CUDA_VISIBLE_DEVICES", "xpu": "ZE_AFFINITY_MASK"}
"""By kind of device, as torch names it. AMD's devices are `cuda` to torch, and their driver reads that variable too."""


def environment_of(kind: str, devices: Iterable[int]) -> dict[str, str]:
    """Environment variables that show a process these devices of this host only. It has not run on a GPU.

    If this process sees a part of the host's devices, `devices` are counted among these.
    """
    if kind not in _VARIABLES:
        raise OnecurveError(f"devices of kind {kind!r} cannot be divided among processes")
    name = _VARIABLES[kind]
    seen = [word.strip() for word in os.environ.get(name, "").split(",") if word.strip()]
    return {name: ",".join(seen[index] if seen else str(index) for index in devices)}
