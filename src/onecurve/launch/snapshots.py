"""The snapshots that the keeper of a host keeps: of its own ranks, also when they are gone, and copies of another's."""

import threading
from collections.abc import Collection, Mapping

from onecurve.describe.host import KeptSnapshots
from onecurve.device.snapshot_memory import SnapshotMemory


class Snapshots:
    """Memory by generation and rank. Several threads use it."""

    def __init__(self) -> None:
        self._slots: dict[tuple[int, int], dict[int, SnapshotMemory]] = {}
        self._lock = threading.RLock()

    def get(self, generation: int, rank: int, slot: int) -> SnapshotMemory | None:
        with self._lock:
            return self._slots.get((generation, rank), {}).get(slot)

    def keep(self, generation: int, rank: int, slot: int, memory: SnapshotMemory) -> None:
        """Keep the memory of a slot; it replaces what the slot had.

        A rank that needs its second slot has done a step since its first snapshot, so all ranks have completed theirs:
        those of earlier generations are no longer needed.
        """
        with self._lock:
            slots = self._slots.setdefault((generation, rank), {})
            if slot in slots:
                slots[slot].close()
            slots[slot] = memory
            if len(slots) > 1:
                self.drop_before(generation)

    def complete(self) -> tuple[KeptSnapshots, ...]:
        """The complete snapshots."""
        with self._lock:
            steps = {
                key: sorted(step for memory in slots.values() if (step := memory.step) is not None)
                for key, slots in self._slots.items()
            }
        return tuple(KeptSnapshots(*key, tuple(found)) for key, found in steps.items() if found)

    def of(self, generation: int, step: int) -> Mapping[int, SnapshotMemory]:
        """The snapshots of one step, by rank."""
        with self._lock:
            return {
                rank: memory
                for (own, rank), slots in self._slots.items()
                if own == generation
                for memory in slots.values()
                if memory.step == step
            }

    def drop_before(self, generation: int, keep: Collection[SnapshotMemory] = ()) -> None:
        """Free the memory of earlier generations, except `keep`."""
        with self._lock:
            for key, slots in [*self._slots.items()]:
                if key[0] >= generation:
                    continue
                for slot, memory in [*slots.items()]:
                    if memory not in keep:
                        memory.close()
                        del slots[slot]
                if not slots:
                    del self._slots[key]

    def close(self) -> None:
        with self._lock:
            for slots in self._slots.values():
                for memory in slots.values():
                    memory.close()
            self._slots.clear()
