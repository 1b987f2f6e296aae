"""Rows that are fetched before their step, so that it does not wait for them.

With a staleness of s, the rows of step k are fetched in step k − s, before its update. For this the ids must be inputs
of the model: the first step shows which ones.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.describe.slots import owned_slots
from onecurve.device.collectives import Group, broadcast_first_text
from onecurve.job.batch import MicroBatch
from onecurve.job.embedding import EmbeddingTable
from onecurve.job.row_tables import Upcoming
from onecurve.params.exchange import RowSharded, collect
from onecurve.params.rows_by_id import RowsById, UnknownIdsError
from onecurve.params.table_holder import ReadRows, TableParts
from onecurve.params.table_inputs import TableInputs, ids_in, learn_inputs

FetchLater = Callable[[Mapping[str, Tensor]], Callable[[], Mapping[str, Tensor]]]
"""Ids by table → a function that waits for their rows. The ranks call both together."""


class RowsAhead:
    """The rows of the next steps. The ranks call its methods together."""

    def __init__(
        self, tables: Mapping[str, EmbeddingTable], fetch_later: FetchLater, group: Group, dtype: torch.dtype
    ) -> None:
        """`group`: the ranks that process different samples. `dtype`: of rows."""
        self._tables, self._fetch_later, self._group, self._dtype = tables, fetch_later, group, dtype
        self._rank, self._ranks = (0, 1) if group is None else (group.rank(), group.size())
        self._inputs: TableInputs | None = None
        self._asked: dict[str, list[Tensor]] = {}
        self._steps: dict[int, _StepRows] = {}

    def rows(self, step: int, table: str, ids: Tensor, padding: int | None = None) -> Tensor | None:
        """Return rows of a step; None if those of this step were not fetched ahead. `padding`: an id whose row does not
        matter. Other micro-batches than those that were fetched for may have it."""
        if self._inputs is None:
            self._asked.setdefault(table, []).append(ids)
        if step not in self._steps:
            return None
        try:
            real = ids != padding if padding is not None else torch.ones_like(ids, dtype=torch.bool)
            rows = self._steps[step].get(table, ids[real])
            return rows.new_zeros(ids.numel(), rows.shape[1]).index_copy_(0, real.nonzero().squeeze(1), rows)
        except UnknownIdsError:
            raise OnecurveError(
                f"table {table!r}: forward asks for ids that were not known when the rows of this step were fetched; "
                "with a staleness above 0, a table must use the ids of the same inputs in every step: set staleness=0"
            ) from None

    def fetch(self, upcoming: Upcoming) -> None:
        """Fetch the rows of the next steps, as they are now. Does nothing before the inputs are known."""
        for step, rounds in upcoming.items() if self._inputs is not None else ():
            if step not in self._steps:
                assert self._inputs is not None
                ids = ids_in(self._inputs, rounds)
                self._steps[step] = _FetchedRows(ids, self._fetch_later(ids), self._group)

    def learn(self, rounds: Sequence[MicroBatch]) -> None:
        """Learn from a step that ends which inputs have the ids of the tables. All ranks take what the first one finds:
        one that has few samples could be wrong."""
        if self._inputs is not None:
            return
        nothing = torch.empty(0, dtype=torch.int64)
        asked = {name: torch.unique(torch.cat([nothing, *self._asked.get(name, ())])) for name in self._tables}
        found, unknown = learn_inputs(asked, rounds)
        text = broadcast_first_text(self._group, json.dumps([found, unknown]) if self._rank == 0 else "")
        self._inputs, unknown = json.loads(text)
        assert self._inputs is not None
        self._asked.clear()
        here = ids_in(self._inputs, rounds)
        unknown = unknown or [name for name, ids in asked.items() if not bool(torch.isin(ids, here[name]).all())]
        if unknown:
            raise OnecurveError(
                f"table {unknown[0]!r}: its ids are not inputs of the model, so its rows cannot be fetched before "
                "their step; give forward the ids as the table uses them, or set staleness=0"
            )

    def end_step(self, step: int) -> None:
        """Forget the rows of a step and those before it."""
        self._steps = {later: rows for later, rows in self._steps.items() if later > step}

    def parts_to_save(self, step: int) -> Iterator[tuple[str, TableParts]]:
        """Yield what this rank writes of the rows of the steps after this one, as tables with a `+` in their names."""
        for later, step_rows in sorted(self._steps.items()):
            for name in self._tables:
                own = step_rows.owned(name)
                states = own.rows.new_empty(own.ids.numel(), 0)
                yield ahead_name(name, later - step), TableParts.by_slot(own.ids, own.rows, states)

    def load(self, step: int, count: int, read: ReadRows) -> Exception | None:
        """Take the rows of the next `count` steps from a checkpoint of this step. Those that it does not have are
        fetched as they are. Return what `read` has raised: the other ranks wait for this one until the end."""
        self._steps.clear()
        own, error = owned_slots(self._rank, self._ranks), None
        for ahead in range(1, count + 1):
            names = {ahead_name(name, ahead): name for name in self._tables}
            found: dict[str, list[tuple[Tensor, Tensor]]] = {}
            try:
                for name, ids, rows, _ in read([*names], own):
                    found.setdefault(names[name], []).append((ids, rows.to(self._dtype)))
            except Exception as raised:
                error = raised
            # A rank may own no row of a step that the others have rows of.
            if broadcast_first_text(self._group, "found" if found else ""):
                self._steps[step + ahead] = _LoadedRows(
                    {name: self._joined(name, found.get(name, [])) for name in self._tables}, self._group
                )
        return error

    def _joined(self, table: str, parts: Sequence[tuple[Tensor, Tensor]]) -> RowsById:
        nothing = torch.empty(0, dtype=torch.int64), torch.empty(0, self._tables[table].width, dtype=self._dtype)
        ids, rows = zip(nothing, *parts, strict=True)
        return RowsById.of(torch.cat(ids), torch.cat(rows))


class _StepRows(Protocol):
    """The rows of one step."""

    def get(self, table: str, ids: Tensor) -> Tensor: ...

    def owned(self, table: str) -> RowsById:
        """The rows of the slots that this rank saves."""


class _FetchedRows:
    """Rows that this rank has asked for."""

    def __init__(self, ids: Mapping[str, Tensor], fetched: Callable[[], Mapping[str, Tensor]], group: Group) -> None:
        self._ids, self._fetched, self._group = ids, fetched, group
        self._rows: Mapping[str, Tensor] | None = None

    def get(self, table: str, ids: Tensor) -> Tensor:
        return self._of(table).get(ids)

    def owned(self, table: str) -> RowsById:
        return collect(self._group, self._of(table))

    def _of(self, table: str) -> RowsById:
        if self._rows is None:
            self._rows = self._fetched()
        return RowsById(self._ids[table], self._rows[table])


@dataclass(frozen=True)
class _LoadedRows:
    """Rows of a checkpoint, each on the rank that owns its slot."""

    tables: Mapping[str, RowsById]
    group: Group

    def get(self, table: str, ids: Tensor) -> Tensor:
        rows = self.tables[table]
        return rows.get(ids) if self.group is None else RowSharded(self.group).fetch(rows, ids)

    def owned(self, table: str) -> RowsById:
        return self.tables[table]


def ahead_name(table: str, steps: int) -> str:
    """Name in a checkpoint of the rows of a table that were fetched for a later step."""
    return f"{table}+{steps}"


def table_of(name: str) -> str:
    """The table of which a checkpoint has rows by this name."""
    return name.partition("+")[0]
