"""The possible plans of a job on a cluster, enumerated in three levels.

A *compute choice* fixes the degrees of the axes, the micro-batch and the precision. Its *schedule choices* add the
pipeline schedule and the recomputation. Their *shardings* divide the data-parallel ranks into `replicate` and `shard`.
All three are plans; each level refines the previous one. Plans that cannot be the best are left out: options without
effect, and `gpipe` if 1f1b is possible, which takes the same time and less memory.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import get_args

from onecurve.describe.arithmetic import divisors
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Recompute, Schedule, Sharding, split_evenly
from onecurve.estimate.estimator import Estimator
from onecurve.search.shares import shares_by_speed
from onecurve.search.stage_balance import balance


class Space:
    """All possible plans for a job on a cluster."""

    def __init__(self, estimator: Estimator) -> None:
        self.estimator = estimator
        self.cluster, self.costs = estimator.cluster, estimator.costs

    def plans(self) -> Iterator[Plan]:
        """Yield every plan of the space."""
        for compute_choice in self.compute_choices():
            for schedule_choice in self.schedule_choices(compute_choice):
                yield from self.shardings(schedule_choice)

    def compute_choices(self) -> Iterator[Plan]:
        """Yield the choices of mesh, micro-batch, rounds, precision and compilation.

        All data-parallel ranks are replicas here.
        """
        for tensor in (1, *self._tensor_degrees):
            for pipeline in self._pipeline_degrees:
                for data in self._data_degrees(tensor * pipeline):
                    if tensor > 1 and data > 1 and self.costs.has_batch_norm:
                        continue  # synchronized batch norm does not work over data ranks in a tensor-parallel model
                    mesh = Mesh(pipeline=pipeline, replicate=data, tensor=tensor)
                    if self.costs.refusal_of(mesh):
                        continue
                    for shares, rounds in self._shares(mesh):
                        for plan in self._kernel_choices(tensor):
                            yield replace(plan, mesh=mesh, micro_batch=shares, rounds=rounds)

    def _kernel_choices(self, tensor: int) -> Iterator[Plan]:
        """Yield the choices of precision, sequence parallelism and compilation."""
        for precision, trace in self.costs.traces.items():
            if tensor == 1:
                yield Plan(precision=precision)
                # How much faster compiled blocks are is not predicted, only measured.
                if any(timing.compiled and timing.precision == precision for timing in self.costs.timings):
                    yield Plan(precision=precision, compile=True)
                continue
            for sequence in (False, True):
                if trace.split_in_two(sequence) is not None:
                    yield Plan(precision=precision, sequence=sequence)

    def schedule_choices(self, compute_choice: Plan) -> Iterator[Plan]:
        """Yield the choices of pipeline schedule, recomputation and stages for a compute choice."""
        for schedule in self._schedules(compute_choice):
            for recompute in self.recomputations:
                if schedule == "zero-bubble" and recompute != "none":
                    continue  # both parts of its split backward would recompute the forward
                if compute_choice.compile and (schedule == "zero-bubble" or recompute != "none"):
                    continue  # the first is impossible, the second if a block has buffers
                yield self._with_stages(compute_choice.replace_unchecked(schedule=schedule, recompute=recompute))

    def shardings(self, schedule_choice: Plan) -> Iterator[Plan]:
        """Yield the schedule choice itself, and all ways to shard it over its data-parallel ranks."""
        data = schedule_choice.mesh.data
        yield schedule_choice
        if self.costs.needs_full_parameters:
            return
        zero_bubble = schedule_choice.schedule == "zero-bubble"
        for shard in divisors(data)[1:]:
            mesh = replace(schedule_choice.mesh, replicate=data // shard, shard=shard)
            if self.costs.refusal_of(mesh):
                continue
            for sharding in ("zero2",) if zero_bubble else get_args(Sharding):
                sharded = schedule_choice.replace_unchecked(mesh=mesh, sharding=sharding)
                yield sharded
                if schedule_choice.rounds > 1 and not zero_bubble:
                    yield sharded.replace_unchecked(reduce="round")

    @property
    def _tensor_degrees(self) -> tuple[int, ...]:
        """Tensor-parallel degrees above 1 within one host; between hosts every matmul would wait for the network."""
        if self.costs.needs_full_parameters:
            return ()
        return tuple(degree for degree in self.costs.tensor_degrees if degree <= self.cluster.ranks_per_host)

    @cached_property
    def _pipeline_degrees(self) -> list[int]:
        """Pipeline degrees that divide the number of blocks or of devices, and powers of two."""
        blocks, devices = len(self.costs.block_chain.blocks), self.cluster.devices
        return [
            ranks
            for ranks in range(1, min(max(1, blocks), devices) + 1)
            if blocks % ranks == 0 or devices % ranks == 0 or ranks & (ranks - 1) == 0
        ]

    def _data_degrees(self, model_ranks: int) -> list[int]:
        """Return data-parallel degrees for a model that uses `model_ranks` ranks.

        They are the divisors of the global batch and the largest degree that the cluster has devices for.
        """
        largest = min(self.cluster.devices // model_ranks, self.costs.global_batch)
        degrees = {degree for degree in divisors(self.costs.global_batch) if degree <= largest}
        return sorted(degree for degree in degrees | {largest} if degree and self._fills_hosts(degree * model_ranks))

    def _fills_hosts(self, ranks: int) -> bool:
        groups = self.cluster.groups
        group = groups[0]
        if len(groups) > 1 and ranks > group.total:  # hosts differ: use the first group only, or all of them
            hosts = sum(group.count for group in groups)
            return ranks % hosts == 0 if group.kind == "cpu" else ranks == self.cluster.devices
        if group.kind == "cpu":
            return ranks <= group.cores_per_host or (
                ranks % group.count == 0 and ranks // group.count <= group.cores_per_host
            )
        return ranks <= group.devices_per_host or ranks % group.devices_per_host == 0

    def _shares(self, mesh: Mesh) -> Iterator[tuple[int | tuple[int, ...], int]]:
        """Yield pairs of micro-batch and number of rounds."""
        for rounds in [1] if self.costs.single_round else divisors(self.costs.global_batch):
            round_size = self.costs.global_batch // rounds
            if round_size < mesh.data:
                return
            if len(self.cluster.groups) > 1:
                yield shares_by_speed(round_size, self._speeds(mesh)), rounds
            elif round_size % mesh.data == 0:
                yield round_size // mesh.data, rounds
            elif mesh.pipeline == 1:
                yield split_evenly(round_size, mesh.data), rounds

    def _speeds(self, mesh: Mesh) -> list[float]:
        """Return the speed of each data-parallel rank: that of the slowest device of its model replica."""
        groups = self.cluster.as_ranks(mesh.size)
        precision = next(iter(self.costs.traces))
        device_speeds = [group.device.speed(precision) for group in groups for _ in range(group.total)]
        speeds = [float("inf")] * mesh.data
        for rank in range(mesh.size):
            data_rank = mesh.data_rank(rank)
            speeds[data_rank] = min(speeds[data_rank], device_speeds[rank])
        return speeds

    def _schedules(self, compute_choice: Plan) -> Sequence[Schedule]:
        pipeline, rounds = compute_choice.mesh.pipeline, compute_choice.rounds
        if pipeline == 1:
            return ("1f1b",)
        schedules: list[Schedule] = ["1f1b" if rounds >= pipeline else "gpipe"]
        if rounds % max(1, rounds // pipeline) == 0:
            if 2 * pipeline <= len(self.costs.block_chain.blocks):
                schedules.append("interleaved")
            schedules.append("zero-bubble")
        return schedules

    @cached_property
    def recomputations(self) -> tuple[Recompute, ...]:
        """The recomputation modes to consider; without blocks there is nothing to recompute."""
        return get_args(Recompute) if next(iter(self.costs.traces.values())).small.blocks else ("none",)

    def _with_stages(self, plan: Plan) -> Plan:
        if plan.mesh.pipeline == 1:
            return plan
        return plan.replace_unchecked(stages=balance(self.estimator.block_chain(plan), plan.stage_count))
