"""The snapshots that a keeper keeps."""

import os

import pytest

from onecurve.describe.host import KeptSnapshots
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.snapshots import Snapshots


def memory(step: int | None) -> SnapshotMemory:
    created = SnapshotMemory.create(100)
    if step is not None:
        created.complete(step, b"root", b"manifest")
    return created


def test_only_complete_snapshots_count() -> None:
    snapshots = Snapshots()
    snapshots.keep(1, 0, 0, memory(5))
    snapshots.keep(1, 1, 0, memory(None))
    assert snapshots.complete() == (KeptSnapshots(1, 0, (5,)),)
    assert list(snapshots.of(1, 5)) == [0]
    assert not snapshots.of(1, 6)


def test_a_snapshot_outlives_its_writer() -> None:
    writer = SnapshotMemory.create(8)
    kept = SnapshotMemory(os.dup(writer.descriptor))
    writer.data[:] = b"12345678"
    assert kept.step is None
    writer.complete(7, b"root", b"the manifest")
    writer.close()
    assert (kept.step, kept.texts(), bytes(kept.read(2, 3))) == (7, (b"root", b"the manifest"), b"345")


def test_a_writer_that_dies_leaves_an_incomplete_snapshot() -> None:
    slot = memory(5)
    slot.begin()
    assert slot.step is None


def test_earlier_generations_are_freed_once_a_later_snapshot_is_complete_on_all_ranks() -> None:
    snapshots, old = Snapshots(), memory(5)
    snapshots.keep(1, 0, 0, old)
    snapshots.keep(2, 0, 0, memory(8))  # other ranks may not have completed it
    assert [kept.generation for kept in snapshots.complete()] == [1, 2]
    snapshots.keep(2, 0, 1, memory(None))
    assert [kept.generation for kept in snapshots.complete()] == [2]
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(old.descriptor)


def test_what_a_generation_continues_from_is_kept() -> None:
    snapshots, chosen = Snapshots(), memory(5)
    snapshots.keep(1, 0, 0, chosen)
    snapshots.keep(1, 0, 1, memory(6))
    snapshots.drop_before(2, keep=[chosen])
    assert snapshots.complete() == (KeptSnapshots(1, 0, (5,)),)
    snapshots.close()
    assert snapshots.complete() == ()
