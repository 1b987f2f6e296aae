"""Builds the embedding tables of a model on this rank, as the plan places them."""

from torch import nn

from onecurve.apply.process_mesh import ProcessMesh
from onecurve.describe.plan import Plan
from onecurve.device.precision import master_dtype
from onecurve.job.embedding import tables_of
from onecurve.params.exchange import Exchange, Replicated, RowSharded
from onecurve.params.tables import Tables


def build_tables(model: nn.Module, plan: Plan, mesh: ProcessMesh, seed: int) -> Tables | None:
    """Connect the model with its rows; None if it has no tables."""
    if not tables_of(model):
        return None

    def exchange(table: str) -> Exchange:
        if mesh.data_group is None or plan.table_placement(table) == "replicated":
            return Replicated(mesh.data_group)
        return RowSharded(mesh.data_group)

    return Tables(model, exchange, seed, master_dtype(plan.precision))
