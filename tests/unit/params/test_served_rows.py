"""The rows of a piece on a server: they can go back, be split and be copied, and are then the same."""

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.slots import SLOTS
from onecurve.job.embedding import Embedding
from onecurve.job.row_optimizer import Adam, RowwiseAdagrad
from onecurve.job.row_point import StepVerdict
from onecurve.params.row_store import RowStore
from onecurve.params.served_rows import ServedRows
from onecurve.params.slots import slots_of
from onecurve.params.step_log import ReadyStep
from onecurve.params.table_holder import Gradients

IDS = torch.arange(40)


def new_rows() -> ServedRows:
    tables = [Embedding("item", 3, Adam()), Embedding("user", 2, RowwiseAdagrad())]
    stores = {table.table: RowStore(table, seed=5, dtype=torch.float64) for table in tables}
    return ServedRows(range(SLOTS), stores)


def step(number: int, seed: int, is_skipped: bool = False) -> ReadyStep[Gradients]:
    draw = torch.Generator().manual_seed(seed)
    parts: list[Gradients] = []
    for _ in range(2):
        used = torch.randperm(len(IDS), generator=draw)[:7]
        of_item = torch.randn(7, 3, dtype=torch.float64, generator=draw)
        parts.append({"item": (used, of_item), "user": (used[:3], of_item[:3, :2])})
    return ReadyStep(number, tuple(parts), StepVerdict(factor=0.5, is_skipped=is_skipped))


def all_rows(pieces: Sequence[ServedRows]) -> list[torch.Tensor]:
    """Rows and states of all ids, each from the piece that has it."""
    slots = slots_of(IDS)
    found = []
    for name in ("item", "user"):
        lines = {}
        for piece in pieces:
            held = IDS[(slots >= piece.slots.start) & (slots < piece.slots.stop)]
            lines |= dict(zip(held.tolist(), piece.stores[name].values(held), strict=True))
        found.append(torch.stack([lines[number] for number in IDS.tolist()]))
    return found


def same(first: Sequence[ServedRows], second: Sequence[ServedRows]) -> bool:
    return all(torch.equal(*pair) for pair in zip(all_rows(first), all_rows(second), strict=True))


@given(st.lists(st.booleans(), min_size=1, max_size=5), st.data())
def test_going_back_and_on_again_gives_the_same_rows(skipped: list[bool], data: st.DataObject) -> None:
    steps = [step(number + 1, number, is_skipped) for number, is_skipped in enumerate(skipped)]
    rows, expected = new_rows(), new_rows()
    back = data.draw(st.integers(0, len(steps) - 1))
    later = data.draw(st.integers(back, len(steps)))
    rows.keep((back, later))
    for each in steps:
        rows.add(each)
    for each in steps[:back]:
        expected.add(each)
    rows.go_back(back)
    assert same([rows], [expected])
    for each in steps[back:]:
        rows.add(each)
        expected.add(each)
    assert same([rows], [expected])
    assert rows.updates == expected.updates
    rows.go_back(back)
    for each in steps[back:]:
        rows.add(each)
    assert same([rows], [expected]), "a second time"


@given(st.integers(1, SLOTS - 1), st.integers(0, 3))
def test_pieces_that_were_split_hold_the_same_rows(slot: int, before: int) -> None:
    rows, expected = new_rows(), new_rows()
    rows.keep((2,))
    expected.keep((2,))
    for number in range(1, before + 1):
        rows.add(step(number, number))
    other = rows.split(slot)
    for number in range(before + 1, 6):
        ready = step(number, number)
        parts = [rows.divide(part, slot) for part in ready.parts]
        for side, piece in enumerate((rows, other)):
            piece.add(ReadyStep(number, tuple(part[side] for part in parts), ready.verdict))
    for number in range(1, 6):
        expected.add(step(number, number))
    assert same([rows, other], [expected])
    rows.go_back(2)
    other.go_back(2)
    expected.go_back(2)
    assert same([rows, other], [expected])


def test_squares_do_not_depend_on_pieces() -> None:
    rows, ready = new_rows(), step(1, 3)
    whole = rows.squares(1, ready.parts)
    other = rows.split(1_000)
    parts = [rows.divide(part, 1_000) for part in ready.parts]
    pieces = [piece.squares(1, [part[side] for part in parts]) for side, piece in enumerate((rows, other))]
    assert torch.equal(torch.cat(pieces), whole)
    assert whole.sum() > 0


def test_a_copy_has_the_same_rows_and_can_go_back() -> None:
    rows, stores = new_rows(), new_rows().stores
    rows.keep((1, 3))
    for number in range(1, 4):
        rows.add(step(number, number))
    copy = ServedRows.of(stores, rows.slots, rows.copy())
    assert same([copy], [rows])
    rows.add(step(4, 4))
    copy.add(step(4, 4))
    assert same([copy], [rows])
    rows.go_back(1)
    copy.go_back(1)
    assert same([copy], [rows])


def test_rows_that_were_dropped_leave_nothing_and_give_their_memory_back() -> None:
    rows = new_rows()
    rows.add(step(1, 1))
    store, count = rows.stores["item"], len(rows.stores["item"])
    other = rows.split(2_048)
    other.drop()
    held = store.ids_at(store.in_slots(rows.slots))
    assert 0 < len(held) == len(store) < count
    assert sorted(store.ids_at(store.changed_since(0)).tolist()) == sorted(held.tolist())
    gone = IDS[slots_of(IDS) >= 2_048]
    assert torch.equal(store.values(gone), new_rows().stores["item"].values(gone))
    lines = store._lines
    store.put_values(gone[: count - len(store)], store.values(gone[: count - len(store)]))
    assert store._lines == lines
    assert len(store) == count


def test_what_is_not_kept_cannot_be_taken_away() -> None:
    rows = new_rows()
    rows.keep((1, 2))
    for number in range(1, 4):
        rows.add(step(number, number))
    assert rows.can_go_back(1)
    rows.keep((2, 3))
    rows.keep((1, 2))  # comes late
    assert [rows.can_go_back(number) for number in range(5)] == [False, False, True, True, False]
    rows.keep(())
    assert not any(rows.can_go_back(number) for number in range(5))


def test_what_is_kept_grows_with_the_rows_that_change_and_not_with_the_steps() -> None:
    rows = new_rows()
    rows.keep((0,))
    for number in range(1, 60):
        rows.add(step(number, number % 7))
    (record,) = rows.records
    assert sum(part.ids.numel() for part in record.tables["item"]) <= len(IDS)


def test_another_crew_forgets_what_was_pushed_for_later_steps() -> None:
    """Also if no step has to be taken away."""
    rows, expected = new_rows(), new_rows()
    rows.keep((0, 1))
    rows.squares(1, step(1, 1).parts)
    rows.begin_crew(0)
    assert rows.points == (0,)
    assert torch.equal(rows.squares(1, step(1, 2).parts), expected.squares(1, step(1, 2).parts))
    rows.add(step(1, 2))
    expected.add(step(1, 2))
    assert same([rows], [expected])


def test_rows_go_back_further_after_a_later_step_is_no_longer_kept() -> None:
    rows, expected = new_rows(), new_rows()
    rows.keep((1, 2))
    for number in range(1, 4):
        rows.add(step(number, number))
    rows.keep((1, 3))
    rows.add(step(4, 4))
    rows.go_back(1)
    expected.add(step(1, 1))
    assert same([rows], [expected])
