"""Time and memory of embedding tables under a plan, and the placement of their rows that takes the least time.

Rows are in host memory. `row_sharded`: forward fetches the rows of a round with an all-to-all, and the gradients of a
step go back with another one. `replicated`: all ranks gather the gradients of all ranks, and update all of their rows.
`served`: each round asks the servers for its rows, and each step sends them its gradients, which they copy to each
other.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onecurve.describe.plan import Plan, TablePlacement
from onecurve.describe.profile import CollectiveKind
from onecurve.describe.table_use import TableUse
from onecurve.estimate.collective import AxisPlacement

_REQUEST_SECONDS = 4e-4
"""Of a request to servers and its answer, without its rows: two processes encode and decode frames."""
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
    if placement == "served":
        # The work of the servers is not divided by their number: a rank waits for the slowest, and two have each row.
        link = axis.inter_host if axis.hosts > 1 else axis.intra_host
        moved = of_step * (_ID_BYTES + line) / link.bandwidth
        pull = _REQUEST_SECONDS + moved + costs.lookup.of(ranks * of_round)
        push = 2 * _REQUEST_SECONDS + 2 * moved + 2 * costs.merge.of(ranks * of_step) + costs.update.of(of_all)
        return seconds + rounds * pull + push
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
    if placement == "served":
        return 0.0
    return stored_bytes(use, plan) / (1 if placement == "replicated" else plan.mesh.data)


def stored_bytes(use: TableUse, plan: Plan) -> float:
    """Return the bytes of all rows and their optimizer states at the end of the training."""
    return use.rows * (_ID_BYTES + _INDEX_BYTES + (use.width + use.state_width) * element_bytes(plan))


@dataclass(frozen=True)
class TableLimits:
    """Bytes of a rank's memory that its rows may take."""

    replicated: float
    """Those of all tables whose rows are on every rank."""
    in_ranks: float
    """Those of all tables; infinity if there are no servers."""


def best_placements(
    tables: Sequence[TableUse], plan: Plan, samples: int, axis: AxisPlacement, limits: TableLimits
) -> Mapping[str, TablePlacement]:
    """Return where the rows of each table are best: in the ranks as far as there is room for them, and replicated if
    that is faster and small enough; those that gain the most per byte come first."""
    several = axis.ranks > 1
    chosen: dict[str, TablePlacement] = dict.fromkeys(
        (use.name for use in tables), "row_sharded" if several else "replicated"
    )
    left = limits.replicated

    def gain(use: TableUse) -> float:
        sharded, replicated = (
            table_seconds(use, placement, plan, samples, axis) for placement in ("row_sharded", "replicated")
        )
        return sharded - replicated

    gaining = [use for use in tables if several and gain(use) > 0]
    for use in sorted(gaining, key=lambda use: gain(use) / table_bytes(use, "replicated", plan), reverse=True):
        needed = table_bytes(use, "replicated", plan)
        if needed <= left:
            chosen[use.name] = "replicated"
            left -= needed
    for use in sorted(tables, key=lambda use: table_bytes(use, chosen[use.name], plan), reverse=True):
        if sum(table_bytes(each, chosen[each.name], plan) for each in tables) > limits.in_ranks:
            chosen[use.name] = "served"
    return chosen


def element_bytes(plan: Plan) -> int:
    return 8 if plan.precision == "fp64" else 4
