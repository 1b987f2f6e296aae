"""What a row server must know about a job: told by the ranks, and by servers to those that join."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import msgspec
import torch

from onecurve.describe.slots import SLOTS
from onecurve.job.row_limits import RowLimits
from onecurve.job.row_optimizer import SGD, Adam, RowOptimizer, RowwiseAdagrad, TorchOptimizer
from onecurve.params.row_store import RowStore, Spill, StoredTable, squares_by_slot, state_width
from onecurve.params.stores import new_store

OptimizerName = Literal["SGD", "RowwiseAdagrad", "Adam", "TorchOptimizer"]

_COMPILED: Mapping[OptimizerName, type[SGD] | type[RowwiseAdagrad] | type[Adam]] = {
    "SGD": SGD,
    "RowwiseAdagrad": RowwiseAdagrad,
    "Adam": Adam,
}
DtypeName = Literal["float32", "float64"]

_DTYPES: Mapping[DtypeName, torch.dtype] = {"float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class TableSettings:
    """One table."""

    table: str
    width: int
    optimizer_name: OptimizerName
    optimizer_settings: Mapping[str, Any]
    limits: RowLimits = field(default_factory=RowLimits)

    @staticmethod
    def of(table: StoredTable) -> "TableSettings":
        settings = asdict(table.optimizer)  # type: ignore[call-overload]
        name: OptimizerName = type(table.optimizer).__name__  # type: ignore[assignment]
        return TableSettings(table.table, table.width, name, settings, table.limits)

    @property
    def optimizer(self) -> RowOptimizer:
        if self.optimizer_name == "TorchOptimizer":
            return TorchOptimizer(**self.optimizer_settings)
        return msgspec.convert(self.optimizer_settings, _COMPILED[self.optimizer_name])


@dataclass(frozen=True)
class RowSettings:
    """All tables of a job that are on servers."""

    tables: Sequence[TableSettings]
    seed: int
    dtype: DtypeName

    @staticmethod
    def of(tables: Iterable[StoredTable], seed: int, dtype: torch.dtype) -> "RowSettings":
        names = {each: name for name, each in _DTYPES.items()}
        return RowSettings([TableSettings.of(table) for table in tables], seed, names[dtype])

    def encoded(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decoded(text: str) -> "RowSettings":
        return msgspec.json.decode(text, type=RowSettings)

    def new_stores(self, spill: Spill | None = None) -> dict[str, RowStore]:
        """An empty store for each table. `spill`: its memory is divided by the lengths of the tables' rows."""
        share = 1 / max(1, len(self.tables))
        lengths = {each.table: each.width + state_width(each) for each in self.tables}
        stores = {}
        for each in self.tables:
            part = lengths[each.table] / sum(lengths.values())
            own = replace(spill, memory=int(part * spill.memory)) if spill is not None else None
            stores[each.table] = new_store(each, self.seed, _DTYPES[self.dtype], share, own)
        return stores


def compile_kernels() -> None:
    """Have numba compile all that a server will need, once per machine: it takes seconds, in which nobody is served."""
    ids = torch.arange(2)
    for dtype in _DTYPES.values():
        for name in _COMPILED:
            store = RowStore(TableSettings("", 1, name, {}), 0, dtype)
            store.update(ids, torch.ones(2, 1, dtype=dtype), 0.1, 1)
            store.put_values(ids, store.values(ids))
            store.get(ids)
            squares_by_slot(ids, torch.ones(2, 1, dtype=dtype), range(SLOTS))
            store.epochs(ids)
            store.in_slots(range(1))
            store.drop(range(1))
