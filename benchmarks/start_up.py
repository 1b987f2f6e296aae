"""The process groups that one rank of a large world creates when a run starts, and the work this takes.

The rank is real: it runs the code of a run on gloo, over a store that counts its operations. The other ranks are
simulated. The group of the pipeline stages connects all its members at once: threads of this process take the places of
the other stages. In the other groups a first all-reduce connects a rank to its two neighbours in the ring. It is not
run, but the two addresses that gloo would read are counted; tests/unit/device/test_gloo.py counts them in real groups.
"""

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from torch.distributed import distributed_c10d

from onecurve.apply.process_mesh import make_mesh
from onecurve.describe.mesh import Mesh
from onecurve.describe.units import bytes_text
from onecurve.device.collectives import new_host_group
from onecurve.device.device import resident_bytes
from onecurve.device.gloo import connect_neighbours, gloo_lazy_init

MESHES = (
    Mesh(pipeline=4, replicate=4, shard=8, tensor=8),
    Mesh(pipeline=4, replicate=16, shard=32, tensor=8),
    Mesh(pipeline=4, replicate=32, shard=128, tensor=8),
)
"""1,024, 16,384 and 131,072 ranks, with all axes."""


@dataclass(frozen=True)
class StartUp:
    """What one rank does to create its process groups."""

    ranks: int
    """Size of the world."""
    groups: int
    """Process groups that the rank creates or helps to create: world, mesh and checkpoints."""
    store_operations: dict[str, int]
    """Kind of operation → its number."""
    seconds: float
    """Time to create all of them."""
    memory: int
    """Bytes by which the resident memory of the process grows."""


class CountingStore(dist.Store):
    """A store for one rank: counts its operations. Threads answer for the other members of a group that connects at
    once."""

    def __init__(self, store: dist.Store, simulated_size: int = 0) -> None:
        """`simulated_size`: size of the groups whose other members are simulated; 0 if all ranks are real."""
        super().__init__()
        self.operations: Counter[str] = Counter()
        self._store = store
        self._simulated_size = simulated_size
        self._answered: set[str] = set()
        self._simulated: list[dist.ProcessGroupGloo] = []

    def set(self, key: str, value: str) -> None:
        self.operations["set"] += 1
        self._store.set(key, value)

    def get(self, key: str) -> bytes:
        self.operations["get"] += 1
        return self._store.get(key)

    def wait(self, keys: Sequence[str], timeout: timedelta = timedelta(minutes=1)) -> None:  # type: ignore[override]
        self.operations["wait"] += 1
        for key in keys:
            self._answer(key)
        self._store.wait(list(keys), timeout)

    def _answer(self, key: str) -> None:
        """Let threads create the group of this key as its other members. gloo's key ends with "/0/RANK"."""
        prefix = key.rsplit("/", 2)[0]
        if prefix in self._answered:
            return
        self._answered.add(prefix)
        store = dist.PrefixStore(prefix, self._store)
        for rank in range(self._simulated_size):
            if not self._store.check([f"{prefix}/0/{rank}"]):
                threading.Thread(target=self._join, args=(store, rank)).start()

    def _join(self, store: dist.Store, rank: int) -> None:
        self._simulated.append(dist.ProcessGroupGloo(store, rank, self._simulated_size))


def measure(mesh: Mesh) -> StartUp:
    """Create the process groups of the middle rank of the mesh."""
    rank, store = mesh.size // 2, CountingStore(dist.HashStore(), mesh.pipeline)
    with _simulated_world(store) as groups:
        begin, resident = time.perf_counter(), resident_bytes()
        with gloo_lazy_init(True):
            dist.init_process_group("gloo", store=store, rank=rank, world_size=mesh.size)
        try:
            connect_neighbours()
            make_mesh(mesh, rank, "cpu")
            new_host_group()
            seconds = time.perf_counter() - begin
            memory = max(0, resident_bytes() - resident)
        finally:
            dist.destroy_process_group()
    return StartUp(mesh.size, len(groups), dict(store.operations), seconds, memory)


@contextmanager
def _simulated_world(store: CountingStore) -> Iterator[list[int]]:
    """Collect the sizes of the groups that torch creates, also for other ranks; replace all-reduces by their reads."""
    sizes: list[int] = []
    connected: set[dist.ProcessGroup | None] = set()
    create = distributed_c10d._new_process_group_helper

    def counted(group_size: int, *arguments: Any, **keywords: Any) -> Any:
        sizes.append(group_size)
        return create(group_size, *arguments, **keywords)

    def read_neighbours(*_: Any, group: dist.ProcessGroup | None = None) -> None:
        if group not in connected:
            neighbours = min(2, dist.get_world_size(group) - 1)
            store.operations.update(wait=neighbours, get=neighbours)
            connected.add(group)

    with (
        patch.object(distributed_c10d, "_new_process_group_helper", counted),
        patch.object(dist, "all_reduce", read_neighbours),
    ):
        yield sizes


def print_start_ups(start_ups: Sequence[StartUp]) -> None:
    print("start-up of one rank with all axes on gloo (the other ranks are simulated):")
    for start_up in start_ups:
        operations = ", ".join(f"{count} {kind}" for kind, count in sorted(start_up.store_operations.items()))
        print(
            f"{start_up.ranks:9,} ranks: {start_up.groups} process groups, store operations: {operations}; "
            f"{1000 * start_up.seconds:.0f} ms, {bytes_text(start_up.memory)}"
        )


def summary(start_ups: Sequence[StartUp]) -> list[dict[str, Any]]:
    return [asdict(start_up) for start_up in start_ups]
