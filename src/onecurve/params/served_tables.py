"""Tables whose rows are on servers, as one rank sees them.

The servers count steps of their own, row steps: each step of the training is one, and so is each part of a checkpoint
that is loaded into them.
"""

import socket
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor

from onecurve.describe.slots import owned_slots
from onecurve.device.collectives import Group, broadcast_first_text
from onecurve.job.embedding import EmbeddingTable
from onecurve.job.initial_rows import initial_rows
from onecurve.job.row_point import RowPoint, StepVerdict
from onecurve.params.background import Background
from onecurve.params.dense_rows import DenseRows
from onecurve.params.row_client import RECEIVED_ALL, RowClient, Views
from onecurve.params.row_store import state_width
from onecurve.params.served_rows import RowsRead, StoredRows
from onecurve.params.step_log import RowCrew
from onecurve.params.table_holder import Gradients, ReadRows, RowCount, TableParts

_LOAD_STEPS = 16
"""A checkpoint is loaded in so many parts."""


class RowServers(Views, Protocol):
    """The servers of a job, as a rank reaches them."""

    def begin_anew(self) -> int:
        """Have all servers forget their rows, and divide the slots among those that live; return the epoch in which
        they begin. One rank calls it."""

    def wait_for(self, epoch: int) -> None:
        """Wait for the view of this epoch, or a later one."""

    def next_crew(self) -> int:
        """Return a number that is higher than all before. One rank calls it."""

    def connect(self, address: str, name: str) -> socket.socket:
        """Connect to a server, by this name."""

    def close(self) -> None: ...


class ServedTables:
    """Some tables. Before the first step, and before anything is loaded, all rows have their first values."""

    def __init__(
        self,
        tables: Mapping[str, EmbeddingTable],
        servers: RowServers,
        group: Group,
        seed: int,
        dtype: torch.dtype,
        check: Callable[[], object],
        dense: DenseRows | None = None,
    ) -> None:
        """`group`: the ranks that process different samples. `check`: called while this rank waits for servers; what it
        raises ends the waiting. `dense`: where the parameters are in rows, if workers that are no ranks push the steps:
        the rows can then not go back."""
        self._tables, self._servers, self._group = tables, servers, group
        self._seed, self._dtype, self._check = seed, dtype, check
        self._rank, self._ranks = (0, 1) if group is None else (group.rank(), group.size())
        self.dense = dense
        self._client: RowClient | None = None
        self._background = Background(check)
        """Uses the client alone, until all that was begun is done."""
        self._step = 0
        self._points: deque[int] = deque(maxlen=2)
        """The steps that the ranks may go back to."""

    @property
    def tables(self) -> Sequence[str]:
        return list(self._tables)

    def fetch(self, table: str, ids: Tensor) -> Tensor:
        width = self._tables[table].width
        if self._client is None:
            return initial_rows(self._seed, table, ids, width, self._dtype)
        self._background.settle()
        return self._pull(self._client, self._step + 1, {table: ids})[table]

    def fetch_later(self, ids: Mapping[str, Tensor]) -> Callable[[], Mapping[str, Tensor]]:
        client, step = self._client, self._step + 1
        assert client is not None
        rows = self._background.begin(lambda: self._pull(client, step, ids))
        return lambda: self._background.wait(rows)

    def begin_step(self) -> None:
        self.begin()

    def reduce(self, gradients: Gradients) -> Tensor:
        assert self._client is not None
        self._background.settle()
        squares = self._client.push(self._step + 1, gradients)
        assert squares is not None
        return squares.sum() if self._rank == 0 else torch.zeros((), dtype=torch.float64)

    def send(self, gradients: Gradients) -> None:
        client, step = self._client, self._step + 1
        assert client is not None
        self._background.begin(lambda: client.push(step, gradients))

    def update(self, factor: float, lr_factor: float) -> None:
        self._decide(StepVerdict(factor=factor, lr_factor=lr_factor))

    def skip(self) -> None:
        self._decide(StepVerdict(is_skipped=True))

    def count(self, table: str, since: int) -> RowCount:
        changed = total = 0
        for read in self._read([table], since, limit=0):
            changed, total = changed + read.counts[table][0], total + read.counts[table][1]
        return RowCount(changed, total)

    def begin_epoch(self) -> int:
        return self._step + 1

    def parts_to_save(self, since: int) -> Iterator[tuple[str, TableParts]]:
        found: dict[str, list[StoredRows]] = {name: [] for name in self._tables}
        for read in self._read(self.tables, since):
            for name, stored in read.tables.items():
                found[name].append(stored)
        for name, stored_parts in found.items():
            table = self._tables[name]
            states = state_width(table)
            ids = torch.cat([torch.empty(0, dtype=torch.int64), *(part.ids for part in stored_parts)])
            nothing = torch.empty(0, table.width + states, dtype=self._dtype)
            values = torch.cat([nothing, *(part.values for part in stored_parts)])
            yield name, TableParts.by_slot(ids, values[:, : table.width], values[:, table.width :])

    def load(self, base: ReadRows | None, newest: ReadRows, updates: int) -> int:
        self._begin_anew()
        error = self._load(base, updates, None) if base is not None else None
        epoch = self._step + 1
        error = self._load(newest, updates, error)
        if error is not None:
            raise error
        return self._step + 1 if base is None else epoch

    def begin(self) -> None:
        """Begin without any row, unless rows were loaded. Waits for the servers to start."""
        if self._client is None:
            self._begin_anew()

    @property
    def point(self) -> RowPoint | None:
        """Where the rows stand; None if they have their first values."""
        if self._client is None:
            return None
        self._background.settle()
        return RowPoint(
            step=self._step,
            verdicts=tuple(self._client.verdicts.values()),
            tables=tuple(self._tables),
            restarts=self._servers.current().restarts,
        )

    def can_go_back(self, point: RowPoint) -> bool:
        """True if the rows of this point may be on the servers."""
        if self.dense is not None:
            return False
        return (point.tables, point.restarts) == (tuple(self._tables), self._servers.current().restarts)

    def note_snapshot(self) -> None:
        """The ranks may go back to here. They will not go back to before the snapshot before this one."""
        if self._client is not None and self.dense is None and self._step not in self._points:
            self._background.settle()
            self._points.append(self._step)
            self._client.points = tuple(self._points)

    def go_back(self, point: RowPoint) -> None:
        """Continue from an earlier point, as other ranks. Raises a RowsLostError if the servers do not have it."""
        self._begin_crew(point.step)
        assert self._client is not None
        for step, verdict in enumerate(point.verdicts, point.step - len(point.verdicts) + 1):
            self._client.decide(step, verdict)
        for _ in self._read(self.tables, 0, limit=0):
            pass

    # What workers need that are no ranks

    @property
    def crew(self) -> RowCrew:
        """Whose steps the servers take."""
        assert self._client is not None
        return self._client.crew

    @property
    def step(self) -> int:
        """The row steps that are done."""
        return self._step

    @property
    def verdicts(self) -> Mapping[int, StepVerdict]:
        """On the latest of them."""
        assert self._client is not None
        return self._client.verdicts

    def load_dense(self, read: ReadRows, updates: int) -> None:
        """Send the parameters and the states of their optimizers to the servers. From then on, workers push steps."""
        if error := self._load(read, updates, None):
            raise error
        assert self._client is not None
        self._client.received = RECEIVED_ALL

    def follow(self, step: int, verdicts: Mapping[int, StepVerdict]) -> None:
        """Go on after this step, which workers have pushed, like all before it. `verdicts`: on the latest ones."""
        assert self._client is not None
        self._step, self._client.verdicts = step, dict(verdicts)

    def fill(self, step: int, verdicts: Mapping[int, StepVerdict]) -> None:
        """Push nothing in a step of a worker that is lost, where its gradients have not arrived."""
        assert self._client is not None
        self._client.verdicts = dict(verdicts)
        self._client.push(step, {})

    def read_dense(self) -> Mapping[str, Tensor]:
        """Return the rows of all parameters that steps change, with their states, by table and in the order of ids."""
        assert self.dense is not None
        ids = self.dense.ids(constant=False)
        found: dict[str, list[StoredRows]] = {name: [] for name in ids}
        for read in self._read(list(ids), 0):
            for name, stored in read.tables.items():
                found[name].append(stored)
        joined = {name: StoredRows.joined(parts) for name, parts in found.items()}
        return {name: stored.values[stored.ids.argsort()] for name, stored in joined.items()}

    def close(self) -> None:
        """Let go of the servers."""
        self._close_client()
        self._servers.close()

    def _close_client(self) -> None:
        self._background.close()
        self._background = Background(self._check)
        if self._client is not None:
            self._client.close()
            self._client = None

    def _begin_anew(self) -> None:
        begun = broadcast_first_text(self._group, str(self._servers.begin_anew()) if self._rank == 0 else "")
        self._servers.wait_for(int(begun))  # or this rank would ask for rows that are no longer meant
        self._begin_crew(0)

    def _begin_crew(self, start: int) -> None:
        self._close_client()
        number = broadcast_first_text(self._group, str(self._servers.next_crew()) if self._rank == 0 else "")
        crew = RowCrew(int(number), self._ranks, start)
        name = f"rank{self._rank} of crew {number}"
        self._client = RowClient(
            name,
            self._rank,
            crew,
            self._servers,
            lambda address: self._servers.connect(address, name),
            self._background.check,
        )
        self._step = start
        self._points = deque([start] if start else [], maxlen=2)  # nobody goes back to rows without any step
        self._client.points = tuple(self._points)

    def _decide(self, verdict: StepVerdict) -> None:
        client = self._client
        assert client is not None
        self._step += 1
        step = self._step
        if self._background.is_idle:
            client.decide(step, verdict)
        else:
            self._background.begin(lambda: client.decide(step, verdict))

    def _load(self, read: ReadRows, updates: int, error: Exception | None) -> Exception | None:
        """Send saved rows to the servers, each rank those of its slots. Return the first error: the other ranks cannot
        do without the pushes of this one."""
        assert self._client is not None
        own = owned_slots(self._rank, self._ranks)
        for number in range(_LOAD_STEPS):
            part: dict[str, list[tuple[Tensor, Tensor]]] = {}
            slots = owned_part(own, number, _LOAD_STEPS)
            try:
                for name, ids, rows, states in read(self.tables, slots) if len(slots) and error is None else ():
                    part.setdefault(name, []).append((ids, torch.cat([rows, states], dim=1).to(self._dtype)))
            except Exception as raised:
                error = raised
            found = {
                name: (torch.cat([ids for ids, _ in parts]), torch.cat([values for _, values in parts]))
                for name, parts in part.items()
            }
            self._client.push(self._step + 1, found)
            self._decide(StepVerdict(is_load=True, updates=updates))
        return error

    def _read(self, tables: Sequence[str], since: int, limit: int | None = None) -> Iterator[RowsRead]:
        if self._client is not None:
            self._background.settle()
            own = owned_slots(self._rank, self._ranks)
            yield from self._client.read(self._step + 1, tables, own, since, limit)

    def _pull(self, client: RowClient, step: int, ids: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Pull rows; servers are not asked for tables without ids."""
        wanted = {name: of_table for name, of_table in ids.items() if of_table.numel()}
        rows = client.pull(step, wanted) if wanted else {}
        empty = {
            name: torch.empty(0, self._tables[name].width, dtype=self._dtype) for name in ids if name not in wanted
        }
        return {**rows, **empty}


def owned_part(slots: range, number: int, parts: int) -> range:
    """One of several parts of consecutive slots."""
    return slots[len(slots) * number // parts : len(slots) * (number + 1) // parts]
