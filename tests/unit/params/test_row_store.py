"""Rows are created by updates alone."""

import errno
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.errors import OnecurveError
from onecurve.job.embedding import Embedding
from onecurve.job.initial_rows import initial_rows
from onecurve.job.row_optimizer import SGD, RowwiseAdagrad
from onecurve.params.row_store import RowStore, Spill
from onecurve.params.slots import slots_of


def store(optimizer: object = None) -> RowStore:
    return RowStore(Embedding("item", 3, optimizer), seed=5, dtype=torch.float64)


def ids_of(rows: RowStore) -> list[int]:
    """In the order of their creation."""
    return rows.ids_at(torch.arange(len(rows))).tolist()


def test_reading_creates_nothing() -> None:
    rows = store()
    first = rows.get(torch.tensor([7, -7]))
    assert len(rows) == 0
    assert torch.equal(rows.get(torch.tensor([-7])), first[1:])


def test_an_update_changes_the_first_value() -> None:
    rows, ids, gradients = store(SGD()), torch.tensor([7, 9]), torch.ones(2, 3, dtype=torch.float64)
    before = rows.get(ids)
    rows.update(ids, gradients, lr=0.5, updates=1)
    assert torch.equal(rows.get(ids), before - 0.5)
    assert ids_of(rows) == [7, 9]
    rows.update(ids[1:], gradients[1:], lr=0.5, updates=2)
    assert torch.equal(rows.get(ids), before - torch.tensor([[0.5], [1.0]]))
    assert len(rows) == 2


def test_many_rows_keep_their_values_and_states() -> None:
    rows, ids = store(RowwiseAdagrad()), torch.arange(5_000)
    for part in ids.split(700):
        gradients = part[:, None].expand(-1, 3).double()
        rows.update(part, gradients, lr=0.1, updates=1)
    kept, values, states = rows.contents(torch.arange(5_000))
    assert torch.equal(kept, ids)
    assert torch.equal(states[:, 0], ids.double() ** 2)
    copy = store(RowwiseAdagrad())
    copy.put(kept, values, states, 0)
    assert torch.equal(copy.get(ids), rows.get(ids))


def test_rows_that_change_are_marked_with_the_epoch() -> None:
    rows, gradients = store(SGD()), torch.ones(1, 3, dtype=torch.float64)
    for number in range(3):
        rows.update(torch.tensor([number]), gradients, lr=0.5, updates=1)
        rows.epoch += 1
    rows.put(torch.tensor([9]), gradients, torch.empty(1, 0), 0)
    changed = [rows.ids_at(rows.changed_since(epoch)).tolist() for epoch in range(5)]
    assert changed == [[0, 1, 2, 9], [0, 1, 2], [1, 2], [2], []]


@pytest.mark.parametrize("memory", [0, 100, 8192, 1 << 30])
def test_rows_in_a_file_are_those_in_memory(memory: int, tmp_path: Path) -> None:
    in_file = RowStore(Embedding("item", 3, RowwiseAdagrad()), 5, torch.float64, spill=Spill(str(tmp_path), memory))
    in_memory, draw = store(RowwiseAdagrad()), torch.Generator().manual_seed(0)
    for number in range(20):
        ids = torch.randperm(3_000, generator=draw)[:500]
        gradients = torch.randn(500, 3, generator=draw, dtype=torch.float64)
        for rows in (in_file, in_memory):
            rows.update(ids, gradients, lr=0.1, updates=number + 1)
    every = torch.arange(3_000)
    assert len(in_file) == len(in_memory)
    assert torch.equal(in_file.get(every), in_memory.get(every))
    assert torch.equal(in_file.values(every), in_memory.values(every))
    in_file.drop(range(2000))
    in_file.put_values(every, in_memory.values(every))
    assert torch.equal(in_file.values(every), in_memory.values(every))
    assert [*tmp_path.iterdir()] == [], "the file has no name"


def test_a_full_disk_is_said_before_a_row_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = RowStore(Embedding("item", 3, SGD()), 5, torch.float64, spill=Spill(str(tmp_path), 0))

    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(OnecurveError, match=r"table 'item': no space for more rows .* \(No space left on device\)"):
        rows.update(torch.arange(2), torch.ones(2, 3, dtype=torch.float64), 0.1, 1)
    with pytest.raises(OnecurveError, match=r"nowhere: no rows can be stored there \(No such file or directory\)"):
        RowStore(Embedding("item", 3, SGD()), 5, torch.float64, spill=Spill(str(tmp_path / "nowhere"), 0))


IDS = st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 50)


@given(st.lists(st.lists(IDS, unique=True, min_size=1, max_size=40), max_size=12))
def test_rows_are_found_again(batches: list[list[int]]) -> None:
    """Each update subtracts 1 from its rows."""
    rows, updates = store(SGD()), dict[int, int]()
    for batch in batches:
        rows.update(torch.tensor(batch), torch.ones(len(batch), 3, dtype=torch.float64), lr=1.0, updates=1)
        for number in batch:
            updates[number] = updates.get(number, 0) + 1
    assert ids_of(rows) == list(updates), "in the order of their creation"
    ids = torch.tensor([*updates, 77, -77])
    expected = initial_rows(5, "item", ids, 3, torch.float64)
    for place, count in enumerate(updates.values()):
        for _ in range(count):
            expected[place] -= 1.0
    assert torch.equal(rows.get(ids[: len(updates)]), expected[: len(updates)])
    absent = [place for place in (-2, -1) if int(ids[place]) not in updates]
    assert torch.equal(rows.get(ids[absent]), expected[absent])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("width", [1, 7, 64])
def test_first_values_are_those_of_the_module(width: int, dtype: torch.dtype) -> None:
    rows = RowStore(Embedding("user", width), seed=-3, dtype=dtype)
    ids = torch.tensor([0, 1, -1, 12345678901234567, (1 << 63) - 1, -(1 << 63)])
    assert torch.equal(rows.get(ids), initial_rows(-3, "user", ids, width, dtype))


def test_many_rows_of_one_slot() -> None:
    numbers = torch.arange(3_000_000)
    same = numbers[slots_of(numbers) == 7]
    rows = store(SGD())
    for part in torch.split(same, 100):
        rows.update(part, torch.ones(len(part), 3, dtype=torch.float64), lr=1.0, updates=1)
    assert len(rows) == len(same) > 500
    assert torch.equal(rows.get(same), initial_rows(5, "item", same, 3, torch.float64) - 1.0)
