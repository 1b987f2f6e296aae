"""Checkpoints with the rows that have changed since one with all of them."""

from pathlib import Path

import pytest
import torch

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import SavePoint
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import Saver
from onecurve.checkpoint.store import name_of
from onecurve.describe.plan import Plan
from onecurve.device.device import local_device
from onecurve.job.embedding import Embedding
from onecurve.job.row_optimizer import RowwiseAdagrad
from onecurve.params.exchange import Replicated
from onecurve.params.rank_tables import RankTables
from onecurve.params.tables import Tables
from onecurve.runtime.saved_rows import SavedRows


class Training:
    """A table with its checkpoints, on one rank."""

    def __init__(self, folder: Path, last: int = 2) -> None:
        self.store = LocalStore(folder)
        self.saver = Saver(self.store, None, local_device(0), Plan(), {}, Retention(last))
        table = Embedding("item", 2, RowwiseAdagrad())
        self.holder = RankTables({"item": table}, {"item": Replicated(None)}, 1, torch.float64, 1.0)
        self.rows = SavedRows(Tables(table, [self.holder], torch.float64), rank=0)

    def update(self, *ids: int) -> None:
        gradients = torch.ones(len(ids), 2, dtype=torch.float64)
        self.holder.stores["item"].update(torch.tensor(ids), gradients, lr=0.1, updates=1)

    def save(self, step: int) -> int:
        """Save; return how many rows were written."""
        taken = self.rows.for_checkpoint(step, self.saver.saved_name, None)
        self.saver.save(taken.tensors, {}, SavePoint(step, rows_base=taken.base), taken.needed)
        self.saver.wait()
        return next(tensor.local.numel() for tensor in taken.tensors if tensor.name.endswith("/ids"))

    def load(self) -> None:
        self.rows.load(Checkpoint(self.store, self.store.names()[-1]), can_be_base=True, step=0, updates=0)

    @property
    def contents(self) -> dict[int, list[float]]:
        """The row and the state of each id."""
        store = self.holder.stores["item"]
        ids, rows, states = store.contents(torch.arange(len(store)))
        return dict(zip(ids.tolist(), torch.cat([rows, states], dim=1).tolist(), strict=True))


def test_a_save_has_the_rows_that_changed_since_the_last_one_with_all(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.update(*range(10))
    assert training.save(1) == 10
    training.update(3, 4)
    assert training.save(2) == 2
    training.update(5, 20)
    assert training.save(3) == 4, "all that have changed since step 1"
    loaded = Training(tmp_path)
    loaded.load()
    assert loaded.contents == training.contents
    for each in (training, loaded):  # a run that continues goes on in the same way
        each.update(6)
    assert loaded.save(4) == 5
    again = Training(tmp_path)
    again.load()
    assert again.contents == training.contents


def test_a_snapshot_elsewhere_is_based_on_a_checkpoint_of_the_run(tmp_path: Path) -> None:
    training = Training(tmp_path / "disk")
    training.update(*range(10))
    training.save(1)
    training.update(2)
    training.save(2)
    training.update(7)
    taken = training.rows.for_snapshot(2)
    memory = Training(tmp_path / "memory")  # stands for the memory that a rank's keeper keeps
    memory.saver.save(taken.tensors, {}, SavePoint(3, rows_base=taken.base))
    memory.saver.wait()
    loaded = Training(tmp_path / "disk")
    snapshot = Checkpoint(memory.store, memory.store.names()[-1], loaded.store)
    loaded.rows.load(snapshot, can_be_base=False, step=0, updates=0)
    assert loaded.contents == training.contents
    loaded.update(8)
    assert loaded.save(4) == 3, "rows 2, 7 and 8 are not in the checkpoint of step 1"


def test_all_rows_are_saved_when_most_have_changed(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.update(*range(10))
    training.save(1)
    training.update(*range(6))
    assert training.save(2) == 10
    training.update(0)
    assert training.save(3) == 1
    (base, newest) = training.store.names()
    assert Checkpoint(training.store, newest).root.point.rows_base == base


def test_the_checkpoint_with_all_rows_is_kept_as_long_as_it_is_needed(tmp_path: Path) -> None:
    training = Training(tmp_path, last=1)
    training.update(*range(10))
    steps = []
    for step, changed in enumerate([[0], [1], [2], [*range(8)], [3]], start=1):
        training.update(*changed)
        training.save(step)
        steps.append([Checkpoint(training.store, name).root.point.step for name in training.store.names()])
    # Snapshots in memory may need step 1 until the save after step 4, which has all rows, is known to exist.
    assert steps == [[1], [1, 2], [1, 3], [1, 4], [4, 5]]


def test_a_save_of_all_rows_that_fails_is_not_referred_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(tmp_path)
    training.update(*range(10))
    training.save(1)
    training.update(*range(6))

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as broken:
        broken.setattr(LocalStore, "write", fail)
        assert training.save(2) == 10
    training.update(*range(20, 40))
    assert training.save(3) == 30
    training.update(7)
    assert training.save(4) == 1
    loaded = Training(tmp_path)
    loaded.load()
    assert loaded.contents == training.contents


def test_a_checkpoint_without_its_base_is_damaged(tmp_path: Path) -> None:
    training = Training(tmp_path)
    training.update(*range(10))
    training.save(1)
    training.update(1)
    training.save(2)
    training.store.retire(training.store.names()[0])
    with pytest.raises(CorruptedError):
        Training(tmp_path).load()


def test_the_base_of_every_kept_checkpoint_is_kept() -> None:
    names = [name_of(step, f"{step:016x}") for step in (100, 200, 300, 400)]
    bases = {names[1]: names[0], names[3]: names[2]}
    found = Retention(last=1).unneeded(names, names[3], 200, base_of=lambda name: bases.get(name, ""))
    assert found == []
    found = Retention(last=1).unneeded(names, names[3], None, base_of=lambda name: bases.get(name, ""))
    assert found == names[:2]
