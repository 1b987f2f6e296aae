"""The process groups that one rank of a large world creates when a run starts, and the work this takes.

The rank is real: it runs the code of a run on gloo, over a store that counts its operations. The other ranks are
simulated. Groups that connect at first use need no answer from them. For the group of the pipeline stages, which
connects at once, threads of this process take the places of the other stages. Collectives do nothing.
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
from onecurve.device.gloo import gloo_lazy_init

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
    """A store for one real rank: counts its operations. Threads answer for the other members of an eager group."""

    def __init__(self, stages: int) -> None:
        """`stages`: size of the groups that connect at once."""
        super().__init__()
        self.operations: Counter[str] = Counter()
        self._stages = stages
        self._store = dist.HashStore()
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
        for rank in range(self._stages):
            if not self._store.check([f"{prefix}/0/{rank}"]):
                threading.Thread(target=self._join, args=(store, rank)).start()

    def _join(self, store: dist.Store, rank: int) -> None:
        self._simulated.append(dist.ProcessGroupGloo(store, rank, self._stages))


def measure(mesh: Mesh) -> StartUp:
    """Create the process groups of the middle rank of the mesh."""
    rank, store = mesh.size // 2, CountingStore(mesh.pipeline)
    with _count_groups() as groups:
        begin, resident = time.perf_counter(), resident_bytes()
        with gloo_lazy_init(True):
            dist.init_process_group("gloo", store=store, rank=rank, world_size=mesh.size)
        try:
            make_mesh(mesh, rank, "cpu")
            new_host_group()
            seconds = time.perf_counter() - begin
            memory = max(0, resident_bytes() - resident)
        finally:
            dist.destroy_process_group()
    return StartUp(mesh.size, groups.total(), dict(store.operations), seconds, memory)


@contextmanager
def _count_groups() -> Iterator[Counter[str]]:
    """Count the groups that torch creates, also those of other ranks only. The simulated ranks skip collectives."""
    groups: Counter[str] = Counter()
    create = distributed_c10d._new_process_group_helper

    def counted(*arguments: Any, **keywords: Any) -> Any:
        groups["created"] += 1
        return create(*arguments, **keywords)

    with patch.object(distributed_c10d, "_new_process_group_helper", counted), patch.object(dist, "all_reduce"):
        yield groups


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
