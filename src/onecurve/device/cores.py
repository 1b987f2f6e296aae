"""Assigns CPU cores to the ranks of a host: adjacent cores, used by no other rank, in one NUMA node if possible, which
for the rank of an accelerator is that of its device."""

import os
from collections.abc import Mapping, Sequence
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


def cores_near(rank: int, nodes_of_ranks: Sequence[int], nodes: Mapping[int, Sequence[int]]) -> list[int]:
    """The cores of a rank whose device belongs to a NUMA node: an equal part of the cores of that node.

    `nodes_of_ranks`: the node of each rank's device. Empty if the node has too few cores for its ranks.
    """
    node = nodes_of_ranks[rank]
    neighbours = [other for other, its_node in enumerate(nodes_of_ranks) if its_node == node]
    cores = nodes.get(node, [])
    count = len(cores) // len(neighbours)
    begin = neighbours.index(rank) * count
    return list(cores[begin : begin + count])


def pin_near_device(rank: int, nodes_of_ranks: Sequence[int]) -> None:
    """Pin this process to cores of the NUMA node of its device, unless OMP_NUM_THREADS is set or nothing is known."""
    if "OMP_NUM_THREADS" not in os.environ and nodes_of_ranks:
        cores = cores_near(rank, nodes_of_ranks, _numa_nodes())
        if cores:
            os.sched_setaffinity(0, cores)
            torch.set_num_threads(len(cores))


def pin_to_cores(rank: int, ranks: int, threads: int) -> None:
    """Pin this process to its cores and set torch's number of threads, unless OMP_NUM_THREADS is set."""
    if "OMP_NUM_THREADS" in os.environ:
        return
    cores = cores_of(rank, ranks, threads, list(_numa_nodes().values()) or [sorted(_ALLOWED_CORES)])
    if cores:
        os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads or max(1, len(_ALLOWED_CORES) // ranks))


def unpin_cores() -> None:
    """Let this process use all cores again; a data loader's process should not compete with its rank."""
    os.sched_setaffinity(0, _ALLOWED_CORES)


def _numa_nodes() -> dict[int, list[int]]:
    """The cores that this process may use, by the number of their NUMA node."""
    files = Path("/sys/devices/system/node").glob("node*/cpulist")
    nodes = {int(path.parent.name.removeprefix("node")): _read_list(path.read_text()) for path in files}
    allowed = {number: [core for core in nodes[number] if core in _ALLOWED_CORES] for number in sorted(nodes)}
    return {number: cores for number, cores in allowed.items() if cores}


def _read_list(text: str) -> list[int]:
    """Parse a list of cores as the kernel writes it: `0-3,8` → [0, 1, 2, 3, 8]."""
    cores: list[int] = []
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        cores += range(int(first), int(last or first) + 1)
    return cores
