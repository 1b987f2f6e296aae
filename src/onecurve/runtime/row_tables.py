"""Builds the embedding tables of a model on this rank, as the plan places them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

from onecurve.apply.process_mesh import ProcessMesh
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.precision import master_dtype
from onecurve.job.embedding import EmbeddingTable, tables_of
from onecurve.job.job import Job
from onecurve.params.exchange import Exchange, Replicated, RowSharded
from onecurve.params.rank_tables import RankTables
from onecurve.params.served_tables import RowServers, ServedTables
from onecurve.params.table_holder import TableHolder
from onecurve.params.tables import Tables


@dataclass(frozen=True)
class RowAccess:
    """How this process reaches the row servers of its job."""

    connect: Callable[[Mapping[str, EmbeddingTable], torch.dtype], RowServers]
    """Tables, and the dtype of their rows → the servers that hold them."""
    check: Callable[[], object] = lambda: None
    """Called while this rank waits for servers; what it raises ends the waiting."""


def build_tables(
    model: nn.Module, plan: Plan, mesh: ProcessMesh, job: Job, access: RowAccess | None = None
) -> Tables | None:
    """Connect the model with its rows; None if it has no tables."""
    if not (tables := tables_of(model)):
        return None
    dtype, group = master_dtype(plan.precision), mesh.data_group
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
    holders: list[TableHolder] = []
    if exchanges:
        in_ranks = {name: tables[name] for name in exchanges}
        holders.append(RankTables(in_ranks, exchanges, job.seed, dtype, 1 / len(tables)))
    if served:
        if access is None:
            raise OnecurveError(
                f"plan {plan}: the rows of {', '.join(served)} are on servers, but the job has none: set Job(params=…)"
            )
        holders.append(ServedTables(served, access.connect(served, dtype), group, job.seed, dtype, access.check))
    return Tables(model, holders, dtype, group, job.staleness)
