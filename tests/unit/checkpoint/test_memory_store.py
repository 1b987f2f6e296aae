"""Loading a snapshot from memory."""

import pytest
import torch
from torch import nn

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.manifest import Root, SavePoint
from onecurve.checkpoint.memory_store import MemoryStore
from onecurve.checkpoint.snapshot_slots import SnapshotSlots
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.device.local_tensor import local_tensor_of
from onecurve.device.snapshot_memory import SnapshotMemory


class Keeper:
    """Keeps the memory of the slots."""

    def __init__(self) -> None:
        self.slots: dict[int, SnapshotMemory] = {}
        self.is_copied_now = True

    def share(self, slot: int, memory: SnapshotMemory) -> None:
        self.slots[slot] = memory

    def completed(self, slot: int) -> None:
        assert self.slots[slot].step is not None

    def is_copied(self, _: int) -> bool:
        return self.is_copied_now

    def newest(self) -> SnapshotMemory:
        return max(self.slots.values(), key=lambda memory: -1 if memory.step is None else memory.step)


def root(step: int) -> Root:
    return Root(token=f"{step:016x}", ranks=1, point=SavePoint(step), plan=Plan(), job={})


def tensors(module: nn.Module):
    return [local_tensor_of(name, parameter, True) for name, parameter in module.named_parameters()]


def test_what_was_copied_is_loaded_and_the_newest_but_one_stays() -> None:
    module, keeper = nn.Linear(3, 2), Keeper()
    slots = SnapshotSlots(local_device(0), 0, keeper)
    values = []
    for step in (1, 2, 3):
        with torch.no_grad():
            module.weight.fill_(step)
        slots.take(tensors(module), {}, root(step))
        values.append(module.weight.detach().clone())
    assert sorted(memory.step or 0 for memory in keeper.slots.values()) == [2, 3]
    store = MemoryStore(lambda _: keeper.newest())
    module.weight.data.zero_()
    Checkpoint(store, store.name()).load(tensors(module), Mesh(), 0)
    assert torch.equal(module.weight, values[-1])


def test_the_next_snapshot_waits_until_the_last_one_is_on_another_host() -> None:
    module, keeper = nn.Linear(3, 2), Keeper()
    slots = SnapshotSlots(local_device(0), 0, keeper)
    assert not slots.is_blocked
    slots.take(tensors(module), {}, root(1))
    keeper.is_copied_now = False
    assert slots.is_blocked
    keeper.is_copied_now = True
    assert not slots.is_blocked


def test_a_slot_that_is_being_saved_is_not_overwritten() -> None:
    module, keeper = nn.Linear(3, 2), Keeper()
    slots = SnapshotSlots(local_device(0), 0, keeper)
    slots.hold(slots.take(tensors(module), {}, root(1)))
    assert slots.take(tensors(module), {}, root(2)) is not None
    assert slots.is_blocked
    assert slots.take(tensors(module), {}, root(3)) is None
    assert sorted(memory.step or 0 for memory in keeper.slots.values()) == [1, 2]


@pytest.mark.parametrize("error", [LookupError("rank 0 is gone"), ConnectionError("cut off")])
def test_a_snapshot_that_is_gone_counts_as_damaged(error: Exception) -> None:
    def gone(_: int) -> SnapshotMemory:
        raise error

    with pytest.raises(CorruptedError, match=str(error).strip("'")):
        MemoryStore(gone).name()
