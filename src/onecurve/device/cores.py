"""Assigns CPU cores to the ranks of a host: adjacent cores, used by no other rank, in one NUMA node if possible."""

import os
from pathlib import Path

import torch

_ALLOWED_CORES = frozenset(os.sched_getaffinity(0))


def cores_of(rank: int, ranks: int, threads: int, nodes: list[list[int]]) -> list[int]:
    """The cores of rank `rank` of `ranks`, or an empty list if the host has too few cores for all ranks.

    `threads` is the number of cores per rank, where 0 means an equal part of all cores; `nodes` lists the cores of each
    NUMA node.
    """
    cores = [core for node in nodes for core in node]
    count = threads or max(1, len(cores) // ranks)
    return cores[rank * count : (rank + 1) * count] if count * ranks <= len(cores) else []


def pin_to_cores(rank: int, ranks: int, threads: int) -> None:
    """Pin this process to its cores and set torch's number of threads, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    cores = cores_of(rank, ranks, threads, _numa_nodes())
    if cores:
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads or max(1, len(_ALLOWED_CORES) // ranks))


def unpin_cores() -> None:
    """Let this process use all cores again; a data loader's process should not compete with its rank."""
    os.sched_setaffinity(0, _ALLOWED_CORES)


def _numa_nodes() -> list[list[int]]:
    """The cores that this process may use, one list per NUMA node."""
    nodes = [_read_list(path.read_text()) for path in sorted(Path("/sys/devices/system/node").glob("node*/cpulist"))]
    allowed = [[core for core in node if core in _ALLOWED_CORES] for node in nodes]
    return [node for node in allowed if node] or [sorted(_ALLOWED_CORES)]


def _read_list(text: str) -> list[int]:
    """Parse a list of cores as the kernel writes it: `0-3,8` → [0, 1, 2, 3, 8]."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
