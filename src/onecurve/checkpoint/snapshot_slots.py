"""The host memory of a rank's snapshots: two slots in memory that it shares with its keeper, or one of its own."""

from collections.abc import Sequence
from typing import Protocol

from onecurve.checkpoint.manifest import Root
from onecurve.checkpoint.snapshot import OptimizerState, Snapshot
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor
from onecurve.device.snapshot_memory import SnapshotMemory


class SnapshotKeeper(Protocol):
    """Who keeps the memory of snapshots when this process is gone."""

    def share(self, slot: int, memory: SnapshotMemory) -> None:
        """Give the keeper the memory of a slot."""

    def completed(self, slot: int) -> None:
        """Say that the slot holds a complete snapshot."""

    def is_copied(self, step: int) -> bool:
        """True if the snapshot of this step is also on another host, or is not to be copied."""


class SnapshotSlots:
    """With two slots, one snapshot is complete at every moment, also while the next one is taken."""

    def __init__(self, device: Device, rank: int, keeper: SnapshotKeeper | None) -> None:
        """`keeper`: None if nobody keeps the snapshots."""
        self._device, self._rank, self._keeper = device, rank, keeper
        self._slots: list[Snapshot | None] = [None] if keeper is None else [None, None]
        self._newest = 0
        self._step: int | None = None
        """Steps done at the newest snapshot."""
        self._held: Snapshot | None = None

    def take(
        self, local_tensors: Sequence[LocalTensor], optimizer_state: OptimizerState, root: Root
    ) -> Snapshot | None:
        """Copy the tensors into the slot that does not hold the newest snapshot; None if that one is held."""
        slot = (self._newest + 1) % len(self._slots)
        snapshot = self._slots[slot]
        if snapshot is not None and snapshot is self._held:
            return None
        if snapshot is None or not snapshot.matches(local_tensors, optimizer_state):
            self._drop(slot)  # free its memory before the next one is allocated
            del snapshot
            snapshot = Snapshot(local_tensors, optimizer_state, self._device, shared=self._keeper is not None)
            self._slots[slot] = snapshot
            if self._keeper is not None and snapshot.memory is not None:
                self._keeper.share(slot, snapshot.memory)
        snapshot.take(optimizer_state)
        if self._keeper is not None:
            snapshot.seal(root, self._rank)
            self._keeper.completed(slot)
        self._newest, self._step = slot, root.point.step
        return snapshot

    def close(self) -> None:
        """Leave the memory to the keeper."""
        for slot in range(len(self._slots)):
            self._drop(slot)

    def _drop(self, slot: int) -> None:
        snapshot, self._slots[slot] = self._slots[slot], None
        if snapshot is not None and snapshot.memory is not None:
            snapshot.memory.close()

    @property
    def is_blocked(self) -> bool:
        """True if the next snapshot has to wait: its slot is held, or the newest one is not on another host yet.

        Otherwise the loss of a host could leave snapshots of different steps on different ranks.
        """
        following = self._slots[(self._newest + 1) % len(self._slots)]
        return (following is not None and following is self._held) or self.is_on_its_way

    @property
    def is_on_its_way(self) -> bool:
        """True while the newest snapshot is being copied to another host."""
        return self._keeper is not None and self._step is not None and not self._keeper.is_copied(self._step)

    def hold(self, snapshot: Snapshot | None) -> None:
        """Do not overwrite this snapshot until another one, or None, is held."""
        self._held = snapshot
