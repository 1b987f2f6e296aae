"""Builds the embedding tables of a model on this rank, as the plan places them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import nn

from onecurve.apply.process_mesh import ProcessMesh
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.collectives import Group
from onecurve.device.precision import master_dtype
from onecurve.job.embedding import EmbeddingTable, tables_of
from onecurve.job.job import Job
from onecurve.params.dense_rows import DenseRows
from onecurve.params.exchange import Exchange, Replicated, RowSharded
from onecurve.params.rank_tables import RankTables
from onecurve.params.row_store import StoredTable
from onecurve.params.served_tables import RowServers, ServedTables
from onecurve.params.table_holder import TableHolder
from onecurve.params.tables import Tables


class HoldRows(Protocol):
    """Makes the holder of some tables, and of a model's parameters, whose rows are on servers."""

    def __call__(
        self, tables: Mapping[str, EmbeddingTable], dtype: torch.dtype, dense: DenseRows | None
    ) -> ServedTables: ...


@dataclass(frozen=True)
class RowAccess:
    """How this process reaches the row servers of its job."""

    hold: Callable[[Group], HoldRows]
    """The ranks that process different samples → how they hold rows."""
    serves_parameters: bool = False
    """True if the parameters are on servers too, because workers compute different steps at the same time."""


def served_by(
    connect: Callable[[Mapping[str, StoredTable], torch.dtype], RowServers],
    seed: int,
    check: Callable[[], object] = lambda: None,
) -> Callable[[Group], HoldRows]:
    """The usual way. `connect`: tables, and the dtype of their rows → the servers that hold them. `check`: called while
    this rank waits for servers; what it raises ends the waiting."""

    def of(group: Group) -> HoldRows:
        def hold(tables: Mapping[str, EmbeddingTable], dtype: torch.dtype, dense: DenseRows | None) -> ServedTables:
            stored: dict[str, StoredTable] = {**tables, **(dense.tables if dense is not None else {})}
            return ServedTables(tables, connect(stored, dtype), group, seed, dtype, check, dense)

        return hold

    return of


def build_tables(
    model: nn.Module, plan: Plan, mesh: ProcessMesh, job: Job, access: RowAccess | None = None
) -> Tables | None:
    """Connect the model with its rows; None if none are needed."""
    tables = tables_of(model)
    dtype, group = master_dtype(plan.precision), mesh.data_group
    dense = DenseRows(model, job.optimizers[""], dtype) if access is not None and access.serves_parameters else None
    if not tables and dense is None:
        return None
    exchanges: dict[str, Exchange] = {}
    served: dict[str, EmbeddingTable] = {}
    for name, table in tables.items():
        placement = plan.table_placement(name)
        if placement == "served":
            served[name] = table
        elif group is None or placement == "replicated":
            exchanges[name] = Replicated(group)
        else:
            exchanges[name] = RowSharded(group)
    if dense is not None and exchanges:
        raise OnecurveError(
            f"plan {plan}: with mode='async' all tables must be on servers, also {', '.join(exchanges)}; leave "
            "'tables' out"
        )
    holders: list[TableHolder] = []
    if exchanges:
        in_ranks = {name: tables[name] for name in exchanges}
        holders.append(RankTables(in_ranks, exchanges, job.seed, dtype, 1 / len(tables)))
    if served or dense is not None:
        if access is None:
            raise OnecurveError(
                f"plan {plan}: the rows of {', '.join(served)} are on servers, but the job has none: set Job(params=…)"
            )
        holders.append(access.hold(group)(served, dtype, dense))
    return Tables(model, holders, dtype, group, job.staleness)
