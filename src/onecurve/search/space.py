"""Which plans are possible, in three levels: what a round computes, how rounds follow each other, what is sharded.

A *core* says the axes, the micro-batch and the precision; its *ways* add schedule and recomputation; their *shardings*
say which of the data-parallel ranks hold copies and which hold shards. Left out is what cannot be the best: an option
that has no effect on a plan, and `gpipe` where 1f1b takes as long and less memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import get_args

from onecurve.describe.arithmetic import divisors
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Recompute, Schedule, Sharding, split_evenly
from onecurve.predict.estimator import Estimator
from onecurve.search.shares import by_speed
from onecurve.search.stage_balance import balance


class Space:
    """All plans for a job on a cluster."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.cluster, self.costs = estimator.cluster, estimator.costs

    def plans(self) -> Iterator[Plan]:
        """Every one of them."""
        for core in self.cores():
            for way in self.ways(core):
                yield from self.shardings(way)

    def cores(self) -> Iterator[Plan]:
        """Data-parallel ranks are all copies here."""
        for tensor in (1, *self._tensor):
            for pipeline in self._pipeline:
                for data in self._data(tensor * pipeline):
                    if tensor > 1 and data > 1 and self.costs.single_round:
                        continue  # batch norm of a cut model cannot ask other data ranks
                    mesh = Mesh(pipeline=pipeline, replicate=data, tensor=tensor)
                    for shares, rounds in self._shares(mesh):
                        for precision, trace in self.costs.traces.items():
                            for sequence in (False, True) if tensor > 1 else (False,):
                                if tensor == 1 or sequence in trace.tensor2:
                                    yield Plan(mesh, shares, rounds, precision, sequence=sequence)

    def ways(self, core: Plan) -> Iterator[Plan]:
        for schedule in self._schedules(core):
            for recompute in self.recomputations:
                if schedule == "zero-bubble" and recompute != "none":
                    continue  # its halved backward would recompute twice
                yield self._staged(core.replace_unchecked(schedule=schedule, recompute=recompute))

    def shardings(self, way: Plan) -> Iterator[Plan]:
        data = way.mesh.data
        yield way
        if self.costs.needs_full_parameters:
            return
        for shard in divisors(data)[1:]:
            mesh = replace(way.mesh, replicate=data // shard, shard=shard)
            for sharding in ("zero2",) if way.schedule == "zero-bubble" else get_args(Sharding):
                sharded = way.replace_unchecked(mesh=mesh, sharding=sharding)
                yield sharded
                if way.rounds > 1 and way.schedule != "zero-bubble":
                    yield sharded.replace_unchecked(reduce="round")

    @property
    def _tensor(self) -> tuple[int, ...]:
        """Within a host: beyond it every product would wait for the network."""
        if self.costs.needs_full_parameters:
            return ()
        return tuple(degree for degree in self.costs.tensor_degrees if degree <= self.cluster.ranks_per_host)

    @cached_property
    def _pipeline(self) -> list[int]:
        """Numbers of stages that blocks or devices come apart into evenly, and powers of two."""
        blocks, devices = len(self.costs.block_chain.blocks), self.cluster.devices
        return [
            ranks
            for ranks in range(1, min(max(1, blocks), devices) + 1)
            if blocks % ranks == 0 or devices % ranks == 0 or ranks & (ranks - 1) == 0
        ]

    def _data(self, model: int) -> list[int]:
        """How many copies or shards of a model that takes so many ranks: those that share the batch evenly, and the
        most that there is room for."""
        most = min(self.cluster.devices // model, self.costs.global_batch)
        fitting = {each for each in divisors(self.costs.global_batch) if each <= most}
        return sorted(each for each in fitting | {most} if each and self._fills_hosts(each * model))

    def _fills_hosts(self, ranks: int) -> bool:
        groups = self.cluster.groups
        group = groups[0]
        if len(groups) > 1 and ranks > group.total:  # unequal machines: those of the first kind, or all of them
            hosts = sum(group.count for group in groups)
            return ranks % hosts == 0 if group.kind == "cpu" else ranks == self.cluster.devices
        if group.kind == "cpu":
            return ranks <= group.cores_per_host or (
                ranks % group.count == 0 and ranks // group.count <= group.cores_per_host
            )
        return ranks <= group.devices_per_host or ranks % group.devices_per_host == 0

    def _shares(self, mesh: Mesh) -> Iterator[tuple[int | tuple[int, ...], int]]:
        for rounds in [1] if self.costs.single_round else divisors(self.costs.global_batch):
            size = self.costs.global_batch // rounds
            if size < mesh.data:
                return
            if len(self.cluster.groups) > 1:
                yield by_speed(size, self._speeds(mesh)), rounds
            elif size % mesh.data == 0:
                yield size // mesh.data, rounds
            elif mesh.pipeline == 1:
                yield split_evenly(size, mesh.data), rounds

    def _speeds(self, mesh: Mesh) -> list[float]:
        """Of each data-parallel rank: that of the slowest device it is spread over."""
        groups = self.cluster.as_ranks(mesh.size)
        precision = next(iter(self.costs.traces))
        of_rank = [group.device.speed(precision) for group in groups for _ in range(group.total)]
        found = [float("inf")] * mesh.data
        for rank in range(mesh.size):
            place = mesh.data_rank(rank)
            found[place] = min(found[place], of_rank[rank])
        return found

    def _schedules(self, core: Plan) -> Sequence[Schedule]:
        pipeline, rounds = core.mesh.pipeline, core.rounds
        if pipeline == 1:
            return ("1f1b",)
        found: list[Schedule] = ["1f1b" if rounds >= pipeline else "gpipe"]
        if rounds % max(1, rounds // pipeline) == 0:
            if 2 * pipeline <= len(self.costs.block_chain.blocks):
                found.append("interleaved")
            found.append("zero-bubble")
        return found

    @cached_property
    def recomputations(self) -> tuple[Recompute, ...]:
        return get_args(Recompute) if next(iter(self.costs.traces.values())).small.blocks else ("none",)

    def _staged(self, plan: Plan) -> Plan:
        if plan.mesh.pipeline == 1:
            return plan
        return plan.replace_unchecked(stages=balance(self.estimator.row(plan), plan.stage_count))
