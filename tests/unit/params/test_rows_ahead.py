"""Rows that are fetched before their step."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.job.embedding import Embedding
from onecurve.params.rows_ahead import RowsAhead
from onecurve.params.rows_by_id import RowsById, UnknownIdsError
from onecurve.params.table_inputs import ids_in, learn_inputs

USERS, ITEMS = torch.tensor([5, 900, -3]), torch.tensor([[1, 2], [2, 7], [1, 1]])


def micro(users: Tensor, items: Tensor) -> MicroBatch:
    return MicroBatch({"user": users, "history": {"items": items}, "time": torch.rand(3)}, None, 3)


def asked(**ids: Sequence[int]) -> dict[str, Tensor]:
    return {name: torch.tensor(sorted(numbers), dtype=torch.int64) for name, numbers in ids.items()}


def test_inputs_are_found_over_all_rounds() -> None:
    rounds = [micro(USERS, ITEMS), micro(USERS + 1, ITEMS)]
    found, unknown = learn_inputs(asked(user=[-3, -2, 5, 6, 900, 901], item=[1, 2, 7]), rounds)
    assert found == {"user": ["['user']"], "item": ["['history']['items']"]}
    assert unknown == []
    later = ids_in(found, [micro(USERS * 2, ITEMS + 1)])
    assert later["user"].tolist() == [-6, 10, 1800]
    assert later["item"].tolist() == [2, 3, 8]


def test_a_table_may_have_the_ids_of_several_inputs() -> None:
    found, unknown = learn_inputs(asked(both=[-3, 1, 2, 5, 7, 900]), [micro(USERS, ITEMS)])
    assert found["both"] == ["['user']", "['history']['items']"]
    assert unknown == []


@pytest.mark.parametrize("ids", [[1, 2], [1, 2, 7, 8], [-2, 6, 901]], ids=["some", "more", "computed"])
def test_ids_that_are_no_inputs_are_not_known(ids: list[int]) -> None:
    assert learn_inputs(asked(item=ids), [micro(USERS, ITEMS)])[1] == ["item"]


def test_inputs_of_one_table_are_found_although_one_has_all_ids_by_chance() -> None:
    both = [micro(torch.tensor([1, 2, 1]), ITEMS)]
    found, _ = learn_inputs(asked(item=[1, 2, 7]), both)
    assert found["item"] == ["['user']", "['history']['items']"], "users might be asked for too, and have others later"


class Counter:
    """Rows whose values say how many updates there were."""

    def __init__(self) -> None:
        self.updates = 0

    def fetch_later(self, ids: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
        rows = {name: of_table[:, None] + 1000.0 * self.updates for name, of_table in ids.items()}
        return lambda: rows


def rows_ahead(counter: Counter) -> RowsAhead:
    return RowsAhead({"user": Embedding("user", 1)}, counter.fetch_later, None, torch.float32)


def step(ahead: RowsAhead, number: int, upcoming: Mapping[int, Any]) -> None:
    """A step up to its update."""
    ahead.fetch(upcoming)
    ahead.rows(number, "user", torch.unique(USERS))
    ahead.learn([micro(USERS, ITEMS)])
    ahead.fetch(upcoming)


def test_rows_are_those_of_the_step_that_fetched_them() -> None:
    counter = Counter()
    ahead = rows_ahead(counter)
    for number in range(1, 5):
        step(ahead, number, {number + 1: [micro(USERS, ITEMS)], number + 2: [micro(USERS, ITEMS)]})
        ahead.end_step(number)
        counter.updates += 1
        later = ahead.rows(number + 1, "user", torch.tensor([5, 900]))
        assert later is not None
        assert (later[:, 0] - torch.tensor([5, 900])).tolist() == [1000.0 * max(0, number - 2)] * 2
    assert ahead.rows(number, "user", USERS) is None, "of a step that has ended"


def test_ids_that_were_not_fetched_are_refused() -> None:
    ahead = rows_ahead(Counter())
    step(ahead, 1, {2: [micro(USERS, ITEMS)]})
    with pytest.raises(OnecurveError, match=r"table 'user': forward asks for ids that were not known .* staleness=0"):
        ahead.rows(2, "user", torch.tensor([6]))


def test_a_table_whose_ids_are_no_inputs_is_refused() -> None:
    ahead = rows_ahead(Counter())
    ahead.rows(1, "user", torch.tensor([6]))
    with pytest.raises(OnecurveError, match=r"table 'user': its ids are not inputs of the model.*staleness=0"):
        ahead.learn([micro(USERS, ITEMS)])


def test_rows_of_later_steps_are_saved_and_loaded() -> None:
    counter = Counter()
    ahead = rows_ahead(counter)
    step(ahead, 7, {8: [micro(USERS, ITEMS)], 9: [micro(USERS + 1, ITEMS)]})
    ahead.end_step(7)
    saved = dict(ahead.parts_to_save(7))
    assert [*saved] == ["user+1", "user+2"]

    def read(tables: Sequence[str], _: range) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        return ((name, saved[name].ids, saved[name].rows, saved[name].states) for name in tables if name in saved)

    counter.updates = 50
    loaded = rows_ahead(counter)
    loaded.load(7, 3, read)
    assert loaded.rows(10, "user", USERS) is None
    for later, ids in ((8, USERS), (9, USERS + 1)):
        rows = loaded.rows(later, "user", ids)
        assert rows is not None
        assert torch.equal(rows[:, 0], ids.float())
    assert dict(loaded.parts_to_save(8))["user+1"].ids.tolist() == saved["user+2"].ids.tolist()


def test_damage_is_returned_when_all_steps_were_read() -> None:
    read_steps = list[str]()

    def read(tables: Sequence[str], _: range) -> Iterator[tuple[str, Tensor, Tensor, Tensor]]:
        read_steps.extend(tables)
        raise OSError("damaged")

    assert str(rows_ahead(Counter()).load(7, 2, read)) == "damaged"
    assert read_steps == ["user+1", "user+2"], "other ranks wait for this one in each step"


def test_padding_need_not_have_been_fetched() -> None:
    ahead = rows_ahead(Counter())
    step(ahead, 1, {2: [micro(USERS, ITEMS)]})
    rows = ahead.rows(2, "user", torch.tensor([-9, 5, 900]), padding=-9)
    assert rows is not None
    assert rows[:, 0].tolist() == [0.0, 5.0, 900.0]


def test_rows_are_found_by_id() -> None:
    rows = RowsById.of(torch.tensor([4, -1, 4]), torch.tensor([[1.0], [2.0], [1.0]]))
    assert rows.ids.tolist() == [-1, 4]
    assert rows.get(torch.tensor([4, 4, -1])).tolist() == [[1.0], [1.0], [2.0]]
    for missing in ([0], [5], [-2, 4]):
        with pytest.raises(UnknownIdsError):
            rows.get(torch.tensor(missing))
    with pytest.raises(UnknownIdsError):
        RowsById(torch.empty(0, dtype=torch.int64), torch.empty(0, 1)).get(torch.tensor([1]))
    assert RowsById(torch.empty(0, dtype=torch.int64), torch.empty(0, 1)).get(
        torch.tensor([], dtype=torch.int64)
    ).shape == (0, 1)
