"""Which cores of the host a rank computes on: its own, side by side, within one NUMA node where that is possible."""

import os
from pathlib import Path

import torch

_ALL = frozenset(os.sched_getaffinity(0))


def cores_of(rank: int, ranks: int, threads: int, nodes: list[list[int]]) -> list[int]:
    """The cores of one of `ranks` on a host whose NUMA `nodes` have these cores; `threads` 0 is an equal part.

    Empty where there are not enough for everyone: then nobody is tied to any.
    """
    cores = [core for node in nodes for core in node]
    each = threads or max(1, len(cores) // ranks)
    return cores[rank * each : (rank + 1) * each] if each * ranks <= len(cores) else []


def pin_to_cores(rank: int, ranks: int, threads: int) -> None:
    """Tie this process to its cores and let torch use as many threads, unless the user has said otherwise."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    own = cores_of(rank, ranks, threads, _numa_nodes())
    if own:
        os.sched_setaffinity(0, own)
    torch.set_num_threads(threads or max(1, len(_ALL) // ranks))


def unpin_cores() -> None:
    """Loader processes run wherever there is room, not on top of the rank they serve."""
    os.sched_setaffinity(0, _ALL)


def _numa_nodes() -> list[list[int]]:
    """The cores this process may use, by node."""
    nodes = [_read_list(path.read_text()) for path in sorted(Path("/sys/devices/system/node").glob("node*/cpulist"))]
    found = [[core for core in node if core in _ALL] for node in nodes]
    return [node for node in found if node] or [sorted(_ALL)]


def _read_list(text: str) -> list[int]:
    """`0-3,8` → [0, 1, 2, 3, 8]"""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
