"""Time and memory of embedding tables under a plan, and the placement of their rows that takes the least time.

Rows are in host memory. `row_sharded`: forward fetches the rows of a round with an all-to-all, and the gradients of a
step go back with another one. `replicated`: all ranks gather the gradients of all ranks, and update all of their rows.
"""

from collections.abc import Mapping, Sequence

from onecurve.describe.plan import Plan, TablePlacement
from onecurve.describe.profile import CollectiveKind
from onecurve.describe.table_use import TableUse
from onecurve.predict.collective import AxisPlacement

_ID_BYTES = 8
_INDEX_BYTES = 32
"""Of each row, besides its id, its numbers and its state."""


def table_seconds(use: TableUse, placement: TablePlacement, plan: Plan, samples: int, axis: AxisPlacement) -> float:
    """Return the seconds of a step. `samples`: of a rank's round. `axis`: all data-parallel ranks."""
    ranks, rounds, costs = axis.ranks, plan.rounds, use.costs
    line = use.width * element_bytes(plan)

    def sent(kind: CollectiveKind, rows: float) -> float:
        """Seconds to send the numbers of rows of each rank, then their ids, then the rows."""
        return sum(axis.seconds(kind, size) for size in (ranks * _ID_BYTES, rows * _ID_BYTES, rows * line))

    of_round, of_step, of_all = (use.distinct(samples * factor) for factor in (1, rounds, rounds * ranks))
    # Rows are moved to their order, and back, by operations that cost about as much as a merge.
    seconds = rounds * (costs.lookup.of(of_round) + costs.merge.of(of_step))
    if ranks == 1:
        return seconds + costs.update.of(of_step)
    if placement == "replicated":
        received = ranks * of_step
        return seconds + sent("all_gather", received) + costs.merge.of(received) + costs.update.of(of_all)
    fetch = sent("all_to_all", of_round) + costs.merge.of(of_round)
    push = sent("all_to_all", of_step) + costs.merge.of(of_step)
    return seconds + rounds * fetch + push + costs.update.of(of_all / ranks)


def table_bytes(use: TableUse, placement: TablePlacement, plan: Plan) -> float:
    """Return the bytes of a rank's rows and their optimizer states at the end of the training."""
    rows = use.rows if placement == "replicated" else use.rows / plan.mesh.data
    return rows * (_ID_BYTES + _INDEX_BYTES + (use.width + use.state_width) * element_bytes(plan))


def best_placements(
    tables: Sequence[TableUse], plan: Plan, samples: int, axis: AxisPlacement, available: float
) -> Mapping[str, TablePlacement]:
    """Return where the rows of each table are best: replicated if that is faster and takes no more than `available`
    bytes for all of them together; those that gain the most per byte come first."""
    if axis.ranks == 1:
        return dict.fromkeys((use.name for use in tables), "replicated")
    chosen: dict[str, TablePlacement] = dict.fromkeys((use.name for use in tables), "row_sharded")
    left = available

    def gain(use: TableUse) -> float:
        sharded, replicated = (
            table_seconds(use, placement, plan, samples, axis) for placement in ("row_sharded", "replicated")
        )
        return sharded - replicated

    gaining = [use for use in tables if gain(use) > 0]
    for use in sorted(gaining, key=lambda use: gain(use) / table_bytes(use, "replicated", plan), reverse=True):
        needed = table_bytes(use, "replicated", plan)
        if needed <= left:
            chosen[use.name] = "replicated"
            left -= needed
    return chosen


def element_bytes(plan: Plan) -> int:
    return 8 if plan.precision == "fp64" else 4
