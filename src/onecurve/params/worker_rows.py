"""The rows of all tables as a worker sees them that computes steps alone, at the same time as others."""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from onecurve.job.embedding import EmbeddingTable
from onecurve.job.row_point import StepVerdict
from onecurve.params.dense_rows import DenseRows
from onecurve.params.row_client import RECEIVED_ALL, RowClient
from onecurve.params.served_tables import RowServers, ServedTables
from onecurve.params.step_log import RowCrew
from onecurve.params.table_holder import Gradients

_PULLS_PER_WORKER = 1 << 40


class Numbering(Protocol):
    """Gives row steps their numbers: the run that a worker works for."""

    def check(self) -> None:
        """Called while the worker waits for servers; what it raises ends the waiting."""

    def number_step(self) -> tuple[int, Mapping[int, StepVerdict]]:
        """Return the number of the row step in which the worker pushes, and the verdicts on the latest ones."""


class WorkerRows(ServedTables):
    """Rows that are as new as the servers have them. An update pushes the gradients of tables and parameters."""

    def __init__(
        self,
        tables: Mapping[str, EmbeddingTable],
        servers: RowServers,
        seed: int,
        dtype: torch.dtype,
        dense: DenseRows,
        crew: RowCrew,
        worker: int,
        numbering: Numbering,
    ) -> None:
        """`worker`: a number that no other one of the crew has had."""
        super().__init__(tables, servers, None, seed, dtype, lambda: None, dense)
        name = f"worker {worker} of crew {crew.number}"
        self._client = RowClient(
            name,
            0,
            crew,
            servers,
            lambda address: servers.connect(address, name),
            numbering.check,
            first_pull=worker * _PULLS_PER_WORKER,
        )
        self._client.received = RECEIVED_ALL
        self._numbering = numbering
        self._gradients: Gradients = {}
        self.dense_gradients: Callable[[], Mapping[str, Tensor | None]] = dict
        """The gradients of the parameters by name, asked when a step is pushed."""
        self.pushed: tuple[int, StepVerdict] | None = None
        """What this worker has pushed last, and what is to become of it; None if it has skipped the step."""

    def begin_step(self) -> None:
        self.pushed = None

    def pull_dense(self, constant: bool) -> Mapping[str, Tensor]:
        """Return the rows of the parameters, and of what steps do not change."""
        assert self.dense is not None
        return self._newest(self.dense.ids(constant))

    def fetch(self, table: str, ids: Tensor) -> Tensor:
        if not ids.numel():
            return torch.empty(0, self._tables[table].width, dtype=self._dtype)
        return self._newest({table: ids})[table]

    def reduce(self, gradients: Gradients) -> Tensor:
        self._gradients = gradients
        squares = [lines.double().square().sum() for _, lines in gradients.values()]
        return torch.stack(squares).sum() if squares else torch.zeros((), dtype=torch.float64)

    def update(self, factor: float, lr_factor: float) -> None:
        assert self._client is not None
        assert self.dense is not None
        step, verdicts = self._numbering.number_step()
        self._client.verdicts = dict(verdicts)
        self._client.push(step, {**self._gradients, **self.dense.lines(self.dense_gradients())})
        self.pushed = step, StepVerdict(factor=factor, lr_factor=lr_factor)
        self._gradients = {}

    def skip(self) -> None:
        self._gradients = {}

    def _newest(self, ids: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        assert self._client is not None
        return self._client.pull(self._step + 1, ids, may_be_newer=True)
