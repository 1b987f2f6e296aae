"""Estimates of time, memory and price for the plans of one job on one cluster, whose hosts may differ."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onecurve.describe.cluster import Cluster, HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.costs import BlockChain, JobCosts
from onecurve.describe.engine import Engine
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan, TablePlacement
from onecurve.estimate.calibration import Calibration
from onecurve.estimate.collective import DATA
from onecurve.estimate.engine_defaults import engine_of
from onecurve.estimate.memory import memory_components, snapshot_bytes
from onecurve.estimate.round import ShardUnit
from onecurve.estimate.scaling import Profiles
from onecurve.estimate.step import Predictor
from onecurve.estimate.tables import TableLimits, best_placements, table_bytes, table_seconds

_RESERVED_FRACTION = 0.05
"""Fraction of the device memory that plans leave free."""
_TABLES_FRACTION = 0.1
"""Fraction of the memory that embedding tables may take if every rank has all of their rows."""
_IN_RANKS_FRACTION = 0.5
"""Fraction of the memory that embedding tables may take before their rows are on servers."""


@dataclass(frozen=True)
class RankGroup:
    """Ranks on identical hosts, and the largest micro-batch among them."""

    group: int
    """Index of the host group in the cluster."""
    hosts: HostGroup
    samples: int


class Estimator:
    """Estimates plans of one job on one cluster. Profiles, predictors and engines are cached between plans."""

    def __init__(self, cluster: Cluster, costs: JobCosts, constants: Constants | None = None) -> None:
        self.cluster, self.costs, self.constants = cluster, costs, constants or cluster.constants
        self._profiles = Profiles(costs)
        self._calibration = Calibration(cluster.groups[0], self.constants, costs, self._profiles)
        self._predictors: dict[object, Predictor] = {}
        self._host_groups: dict[int, tuple[HostGroup, ...]] = {}
        self._engines: dict[object, Engine] = {}
        self._block_chains: dict[tuple[float, ...], BlockChain] = {}
        self._table_placements: dict[object, Mapping[str, TablePlacement]] = {}

    def estimate(self, plan: Plan) -> Estimate:
        """Return the full estimate of a plan."""
        cpu = self.cluster.device_kind == "cpu"
        return Estimate(
            plan=plan,
            seconds=self.seconds(plan),
            memory=self.memory(plan),
            available_bytes=self.available(plan),
            utilization=self._utilization(plan),
            steps=self.costs.steps,
            error=self.constants.error,
            price_per_hour=self._price_per_hour(plan.mesh.size),
            threads=self._hosts(plan.mesh.size)[0].cores_per_host if cpu else 0,
            reserved_bytes=_RESERVED_FRACTION * self._tightest(plan).hosts.device.memory,
        )

    def seconds(self, plan: Plan) -> dict[str, float]:
        """Return the seconds of a step by cause on the slowest ranks, for which all others wait."""
        groups = self._rank_groups(plan)
        if len(groups) == 1:
            return self._seconds(plan, groups[0])
        return max((self._seconds(plan, group) for group in groups), key=lambda terms: sum(terms.values()))

    def compute_lower_bound(self, plan: Plan) -> float:
        """Return a lower bound of the step time for every schedule, recomputation and sharding of this plan."""
        bounds = (
            self._predictor(plan, group).compute_lower_bound(self._profiles.of(plan, group.samples), plan)
            for group in self._rank_groups(plan)
        )
        return self.constants.calibration * max(bounds)

    def memory(self, plan: Plan) -> dict[str, float]:
        """Return the bytes by component of the rank that has the least memory left."""
        return self._memory(plan, self._tightest(plan))

    def available(self, plan: Plan) -> float:
        """Return the bytes that this rank may use. A small part of the device memory stays reserved."""
        return (1 - _RESERVED_FRACTION) * self._tightest(plan).hosts.device.memory

    def devices_paid(self, ranks: int) -> int:
        """Return the number of devices that are paid for; CPU hosts are counted and paid as entire hosts."""
        return sum(count for _, count in self._paid(ranks))

    def block_chain(self, plan: Plan) -> BlockChain:
        """Return the chain of blocks with their time under the plan, relative to the first kind of block."""
        chain, group = self.costs.block_chain, self._rank_groups(plan)[0]
        if not chain.kinds:
            return chain
        units = self._predictor(plan, group).round(self._profiles.of(plan, group.samples), plan).units
        # Rounding lets similar plans share the cached division into stages.
        times = tuple(round(_total(unit) / _total(units[0]), 1) for unit in units)
        if times not in self._block_chains:
            blocks = tuple((times[kind], size) for kind, (_, size) in zip(chain.kinds, chain.blocks, strict=True))
            self._block_chains[times] = BlockChain(blocks, chain.first, (times[-1], chain.last[1]))
        return self._block_chains[times]

    def table_placements(self, plan: Plan) -> Mapping[str, TablePlacement]:
        """Return where the rows of each embedding table are: as the plan says, or where they take the least time."""
        tables = self.costs.tables
        if plan.tables:
            return {use.name: plan.table_placement(use.name) for use in tables}
        key = plan.mesh, plan.micro_batch, plan.rounds, plan.precision
        if key not in self._table_placements:
            group = self._rank_groups(plan)[0]
            axis = self._predictor(plan, group).placement(plan, DATA)
            memory = group.hosts.device.memory
            limits = TableLimits(
                replicated=_TABLES_FRACTION * memory,
                in_ranks=_IN_RANKS_FRACTION * memory if self.costs.has_row_servers else math.inf,
            )
            self._table_placements[key] = best_placements(tables, plan, group.samples, axis, limits)
        return self._table_placements[key]

    def _tightest(self, plan: Plan) -> RankGroup:
        groups = self._rank_groups(plan)
        if len(groups) == 1:
            return groups[0]
        return min(groups, key=lambda group: group.hosts.device.memory - sum(self._memory(plan, group).values()))

    def _memory(self, plan: Plan, group: RankGroup) -> dict[str, float]:
        profile, engine = self._profiles.of(plan, group.samples), self._engine(plan)
        components = memory_components(profile, plan, engine, group.hosts.rank_overhead_bytes)
        if self.costs.snapshots and group.hosts.kind == "cpu":  # other devices have a memory of their own
            components["snapshots"] = snapshot_bytes(profile, plan, engine, self._copies(plan, group.hosts))
        if self.costs.tables and group.hosts.kind == "cpu":  # rows are in the memory of the host
            placements = self.table_placements(plan)
            components["tables"] = sum(table_bytes(use, placements[use.name], plan) for use in self.costs.tables)
        return components

    def _copies(self, plan: Plan, hosts: HostGroup) -> int:
        """Return the number of snapshots per rank. Of those that a run can continue from, a host also keeps the ones of
        another host, and one more while it receives one."""
        own = self.costs.snapshots
        return 2 * own + 1 if own > 1 and plan.mesh.size > hosts.devices_per_host else own

    def _seconds(self, plan: Plan, group: RankGroup) -> dict[str, float]:
        terms = self._predictor(plan, group).seconds(self._profiles.of(plan, group.samples), plan)
        if self.costs.tables:
            placements = self.table_placements(plan)
            axis = self._predictor(plan, group).placement(plan, DATA)
            terms["tables"] = sum(
                table_seconds(use, placements[use.name], plan, group.samples, axis) for use in self.costs.tables
            )
        if self.constants.calibration != 1:
            terms = {name: value * self.constants.calibration for name, value in terms.items()}
        reading = self.costs.read_seconds_per_sample * group.samples * plan.rounds
        return {**terms, "data": max(0.0, reading - sum(terms.values()))}

    def _predictor(self, plan: Plan, group: RankGroup) -> Predictor:
        key = group.group, group.hosts.devices_per_host, plan.precision, plan.compress
        if key not in self._predictors:
            threads = max(1, group.hosts.cores_per_host)
            self._predictors[key] = Predictor(
                group.hosts,
                self._engine(plan),
                self.constants,
                lambda plan, samples: self._calibration.of(plan, threads, samples),
            )
        return self._predictors[key]

    def _rank_groups(self, plan: Plan) -> list[RankGroup]:
        """Return the groups of ranks; ranks are assigned to the cluster's host groups in order."""
        host_groups = self._hosts(plan.mesh.size)
        if len(host_groups) == 1:
            shares = plan.micro_batch
            return [RankGroup(0, host_groups[0], max(shares) if isinstance(shares, tuple) else shares)]
        slowest_link = min((hosts.inter_host for hosts in host_groups), key=lambda link: link.bandwidth)
        groups, begin = [], 0
        for index, hosts in enumerate(host_groups):
            ranks = range(begin, min(begin + hosts.total, plan.mesh.size))
            begin += hosts.total
            if ranks:
                samples = max(_share(plan, rank) for rank in (ranks[0], ranks[-1]))
                groups.append(RankGroup(index, replace(hosts, inter_host=slowest_link), samples))
        return groups

    def _hosts(self, ranks: int) -> tuple[HostGroup, ...]:
        if ranks not in self._host_groups:
            self._host_groups[ranks] = self.cluster.as_ranks(ranks)
        return self._host_groups[ranks]

    def _price_per_hour(self, ranks: int) -> float | None:
        paid = [(group.price_per_hour, count) for group, count in self._paid(ranks)]
        return None if any(price is None for price, _ in paid) else sum((price or 0.0) * count for price, count in paid)

    def _paid(self, ranks: int) -> list[tuple[HostGroup, int]]:
        """Return the number of paid devices (CPU: hosts) of each host group; ranks are assigned to groups in order."""
        paid = []
        for group in self._hosts(ranks):
            used = min(ranks, group.total)
            ranks -= used
            if used:
                paid.append((group, -(-used // group.devices_per_host) if group.kind == "cpu" else used))
        return paid

    def _utilization(self, plan: Plan) -> float:
        """Return the model FLOPs utilization over all devices of the plan."""
        profile = self.costs.traces[plan.precision].large
        flops = profile.flops / profile.samples * plan.global_batch
        return flops / (self.peak(plan) * sum(self.seconds(plan).values()))

    def peak(self, plan: Plan) -> float:
        """Return the peak FLOPs per second of all devices of the plan."""
        groups = self._hosts(plan.mesh.size)
        peak = sum(group.device.peak(plan.precision) * group.total for group in groups)
        return peak * plan.mesh.size / sum(group.total for group in groups)

    def _engine(self, plan: Plan) -> Engine:
        key = plan.precision, plan.compress
        if key not in self._engines:
            optimizer_tensors = next(iter(self.costs.traces.values())).small.optimizer_tensors
            self._engines[key] = engine_of(plan, optimizer_tensors, self.costs.forward_passes)
        return self._engines[key]


def _total(unit: ShardUnit) -> float:
    return unit.forward + unit.backward


def _share(plan: Plan, rank: int) -> int:
    begin, end = plan.share(plan.mesh.data_rank(rank))
    return end - begin
