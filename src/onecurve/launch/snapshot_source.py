"""Where a rank finds the snapshot that its generation continues from: on its own host, or on others."""

from collections.abc import Mapping
from typing import Protocol

from onecurve.describe.assignment import Assignment
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.remote_snapshot import RemoteSnapshot


class KeyValues(Protocol):
    """What is needed of the generation's store."""

    def set(self, key: str, value: str | bytes) -> None: ...

    def get(self, key: str) -> bytes: ...


class SnapshotSource:
    """The snapshots of the ranks of an earlier generation. Nothing in it grows with their number."""

    def __init__(self, assignment: Assignment, here: Mapping[int, SnapshotMemory], store: KeyValues | None) -> None:
        """`here`: those in the memory of this host, by the rank that wrote them. `store`: of the generation."""
        self._assignment, self._here, self._store = assignment, here, store
        self._elsewhere: dict[int, RemoteSnapshot] = {}

    def announce(self) -> None:
        """Let the ranks of other hosts know what this host has. One rank of each host does it."""
        if self._store is None or self._assignment.local_rank > 0 or self._assignment.generation.hosts == 1:
            return
        for rank in self._here:
            self._store.set(f"snapshot/{rank}", self._assignment.keeper)

    def __call__(self, rank: int) -> SnapshotMemory | RemoteSnapshot:
        """Return the snapshot of a rank. Raises LookupError or OSError if no host has it."""
        if rank in self._here:
            return self._here[rank]
        if rank not in self._elsewhere:
            self._elsewhere[rank] = self._connect(rank)
        return self._elsewhere[rank]

    def close(self) -> None:
        for remote in self._elsewhere.values():
            remote.close()
        for memory in self._here.values():
            memory.close()

    def _connect(self, rank: int) -> RemoteSnapshot:
        generation = self._assignment.generation
        assert generation.interruption is not None
        assert generation.interruption.snapshot is not None
        if self._store is None or generation.hosts == 1:
            raise LookupError(f"the snapshot of rank {rank} is not on this host")
        host, _, port = self._store.get(f"snapshot/{rank}").decode().rpartition(":")
        key = bytes.fromhex(generation.store.key)
        return RemoteSnapshot(host, int(port), key, generation.interruption.snapshot, rank)
