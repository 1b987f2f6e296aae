"""Rows that are admitted and evicted: whenever memory is freed, ids have the same rows."""

from collections.abc import Sequence

import torch
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.slots import SLOTS
from onecurve.job.embedding import Embedding
from onecurve.job.initial_rows import initial_rows
from onecurve.job.row_optimizer import SGD, Adam
from onecurve.job.row_point import StepVerdict
from onecurve.params.row_store import RowStore
from onecurve.params.served_rows import ServedRows
from onecurve.params.slots import slots_of
from onecurve.params.step_log import ReadyStep
from onecurve.params.stores import new_store

IDS = torch.arange(6)
FIRST = initial_rows(5, "item", IDS, 2, torch.float64)

steps_of_ids = st.lists(st.sets(st.integers(0, 5)), max_size=12)
limits = st.tuples(st.integers(1, 3), st.none() | st.integers(1, 4))


def new(limit: tuple[int, int | None], optimizer: object = None) -> RowStore:
    return new_store(Embedding("item", 2, optimizer or SGD(1.0), *limit), 5, torch.float64)


def gradients(ids: Sequence[int]) -> tuple[torch.Tensor, torch.Tensor]:
    chosen = torch.tensor(sorted(ids), dtype=torch.int64)
    return chosen, torch.stack([chosen + 1.0, chosen + 2.0], dim=1).double()


@given(steps_of_ids, limits, st.data())
def test_rows_are_those_of_a_simple_model(
    steps: list[set[int]], limit: tuple[int, int | None], data: st.DataObject
) -> None:
    admit, evict = limit
    rows = new(limit)
    expected, seen, newest = FIRST.clone(), [0] * 6, [0] * 6
    for number, ids in enumerate(steps, 1):
        rows.epoch = number
        chosen, lines = gradients(sorted(ids))
        rows.update(chosen, lines, 0.5, number)
        for line, each in zip(lines, chosen.tolist(), strict=True):
            seen[each], newest[each] = seen[each] + 1, number
            if seen[each] >= admit:
                expected[each] -= 0.5 * line
        for each in range(6):
            if evict is not None and newest[each] and number + 1 - newest[each] > evict:
                expected[each], seen[each], newest[each] = FIRST[each], 0, 0
        if data.draw(st.booleans()):
            rows.free(data.draw(st.sampled_from(slots_of(IDS).tolist())), number)
        if data.draw(st.booleans()):  # as a copy, or from a checkpoint
            positions = rows.in_slots(range(SLOTS))
            held = rows.ids_at(positions)
            assert len(set(held.tolist())) == len(held) == len(rows)
            copy = new(limit)
            copy.put_values(held, rows.values(held), rows.changed_in(positions))
            copy.updates = rows.updates
            rows = copy
        assert torch.allclose(rows.get(IDS), expected)
        changed = set(rows.ids_at(rows.changed_since(number)).tolist())
        assert changed <= ids


def test_ids_that_occur_once_take_no_row() -> None:
    rows = new((2, None))
    rows.update(*gradients([0, 1]), 0.1, 1)
    assert RowStore.__len__(rows) == 0
    rows.update(*gradients([1, 2]), 0.1, 2)
    assert RowStore.__len__(rows) == 1
    assert len(rows) == 3
    ids, values, states = rows.contents(rows.in_slots(range(SLOTS)))
    assert sorted(ids.tolist()) == [0, 1, 2]
    assert (values.shape, states.shape) == ((3, 2), (3, 1))


def test_memory_of_rows_that_are_old_is_freed() -> None:
    rows = new((1, 2))
    rows.update(*gradients([0, 1]), 0.1, 1)
    for number in range(2, 5):
        rows.update(*gradients([1]), 0.1, number)
    assert len(rows) == 2
    rows.free(int(slots_of(torch.tensor([0]))), updates=2)
    assert len(rows) == 2, "the rows may go back to a time when it counted"
    rows.free(int(slots_of(torch.tensor([0]))), updates=4)
    assert len(rows) == 1


@given(steps_of_ids, limits, st.data())
def test_rows_on_servers_go_back(steps: list[set[int]], limit: tuple[int, int | None], data: st.DataObject) -> None:
    ready = [
        ReadyStep(number, ({"item": gradients(sorted(ids))},), StepVerdict(lr_factor=0.5))
        for number, ids in enumerate(steps, 1)
    ]
    point = data.draw(st.integers(0, len(steps)))
    served, expected = (ServedRows(range(SLOTS), {"item": new(limit, Adam(0.1))}) for _ in range(2))
    for step in ready[:point]:
        expected.add(step)
        served.keep([point])
        served.add(step)
    if point and point < len(steps):
        for step in ready[point:]:
            served.add(step)
        served.go_back(point)
    for step in ready[point:]:
        expected.add(step)
        if served.applied < step.step:
            served.add(step)
    assert torch.equal(served.get({"item": IDS})["item"], expected.get({"item": IDS})["item"])
