"""What a plan takes on a cluster: its estimate."""

from dataclasses import dataclass, replace

from onecurve.describe.cluster import Cluster, HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.costs import BlockChain, Costs
from onecurve.describe.engine import Engine
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.predict.calibration import Calibration
from onecurve.predict.engine_defaults import engine_of
from onecurve.predict.memory import components
from onecurve.predict.round import Unit
from onecurve.predict.scaling import Profiles
from onecurve.predict.step import Predictor

_RESERVE = 0.05


@dataclass(frozen=True)
class RankGroup:
    """Machines that are alike, and the samples that one of their ranks takes each round."""

    group: int
    """Its number in the cluster."""
    hosts: HostGroup
    samples: int


class Estimator:
    """Of one job on one cluster."""

    def __init__(self, cluster: Cluster, costs: Costs, constants: Constants | None = None) -> None:
        self.cluster, self.costs, self.constants = cluster, costs, constants or cluster.constants
        self._profiles = Profiles(costs)
        self._pace = Calibration(cluster.groups[0], self.constants, costs, self._profiles)
        self._predictors: dict[object, Predictor] = {}
        self._groups: dict[int, tuple[HostGroup, ...]] = {}
        self._engines: dict[object, Engine] = {}
        self._rows: dict[tuple[float, ...], BlockChain] = {}

    def estimate(self, plan: Plan) -> Estimate:
        return Estimate(
            plan,
            self.seconds(plan),
            self.memory(plan),
            self.available(plan),
            self._utilisation(plan),
            self.costs.steps,
            self.constants.error,
            self._hourly(plan.mesh.size),
            self._dealt(plan.mesh.size)[0].cores_per_host if self.cluster.device_kind == "cpu" else 0,
        )

    def seconds(self, plan: Plan) -> dict[str, float]:
        """Of a step, by cause: those of the slowest ranks. Who is faster waits for them."""
        parts = self._parts(plan)
        if len(parts) == 1:
            return self._seconds(plan, parts[0])
        return max((self._seconds(plan, each) for each in parts), key=lambda each: sum(each.values()))

    def computing(self, plan: Plan) -> float:
        """What no schedule, recomputation or sharding of this plan undercuts."""
        parts = self._parts(plan)
        found = (self._predictor(plan, each).computing(self._profiles.of(plan, each.samples), plan) for each in parts)
        return self.constants.calibration * max(found)

    def memory(self, plan: Plan) -> dict[str, float]:
        """Bytes of the fullest rank, by component: of those that have least room left."""
        return self._memory(plan, self._tightest(plan))

    def available(self, plan: Plan) -> float:
        """To that rank; a little is left for what cannot be foreseen."""
        return (1 - _RESERVE) * self._tightest(plan).hosts.device.memory

    def _tightest(self, plan: Plan) -> RankGroup:
        parts = self._parts(plan)
        if len(parts) == 1:
            return parts[0]
        return min(parts, key=lambda each: each.hosts.device.memory - sum(self._memory(plan, each).values()))

    def _memory(self, plan: Plan, part: RankGroup) -> dict[str, float]:
        engine = self._engine(plan)
        return components(self._profiles.of(plan, part.samples), plan, engine, part.hosts.rank_overhead_bytes)

    def taken(self, ranks: int) -> int:
        """Devices that are paid for; of CPU hosts, whole ones."""
        return sum(count for _, count in self._paid(ranks))

    def row(self, plan: Plan) -> BlockChain:
        """The blocks weighed by the time they take under the plan, in parts of the first one's."""
        row, part = self.costs.block_chain, self._parts(plan)[0]
        if not row.kinds:
            return row
        one = self._predictor(plan, part).round(self._profiles.of(plan, part.samples), plan)
        # Rounded, so that plans which differ little share their stages.
        times = tuple(round(_total(unit) / _total(one.units[0]), 1) for unit in one.units)
        if times not in self._rows:
            weighed = tuple((times[kind], size) for kind, (_, size) in zip(row.kinds, row.blocks, strict=True))
            self._rows[times] = BlockChain(weighed, row.first, (times[-1], row.last[1]))
        return self._rows[times]

    def _seconds(self, plan: Plan, part: RankGroup) -> dict[str, float]:
        found = self._predictor(plan, part).seconds(self._profiles.of(plan, part.samples), plan)
        if self.constants.calibration != 1:
            found = {name: value * self.constants.calibration for name, value in found.items()}
        reading = self.costs.read_seconds_per_sample * part.samples * plan.rounds
        return {**found, "data": max(0.0, reading - sum(found.values()))}

    def _predictor(self, plan: Plan, part: RankGroup) -> Predictor:
        key = part.group, part.hosts.devices_per_host, plan.precision, plan.compress
        if key not in self._predictors:
            engine = self._engine(plan)
            threads = max(1, part.hosts.cores_per_host)
            self._predictors[key] = Predictor(
                part.hosts, engine, self.constants, lambda plan, samples: self._pace.of(plan, threads, samples)
            )
        return self._predictors[key]

    def _parts(self, plan: Plan) -> list[RankGroup]:
        """The groups of the cluster, as ranks are dealt out to them in order."""
        groups = self._dealt(plan.mesh.size)
        if len(groups) == 1:
            shares = plan.micro_batch
            return [RankGroup(0, groups[0], max(shares) if isinstance(shares, tuple) else shares)]
        slowest = min((each.inter_host for each in groups), key=lambda each: each.bandwidth)
        found, begin = [], 0
        for number, group in enumerate(groups):
            ranks = range(begin, min(begin + group.total, plan.mesh.size))
            begin += group.total
            if ranks:
                most = max(_share(plan, rank) for rank in (ranks[0], ranks[-1]))
                found.append(RankGroup(number, replace(group, inter_host=slowest), most))
        return found

    def _dealt(self, ranks: int) -> tuple[HostGroup, ...]:
        if ranks not in self._groups:
            self._groups[ranks] = self.cluster.as_ranks(ranks)
        return self._groups[ranks]

    def _hourly(self, ranks: int) -> float | None:
        paid = [(group.price_per_hour, count) for group, count in self._paid(ranks)]
        return None if any(price is None for price, _ in paid) else sum((price or 0.0) * count for price, count in paid)

    def _paid(self, ranks: int) -> list[tuple[HostGroup, int]]:
        """How many of each group, as ranks are dealt out in order."""
        found = []
        for group in self._dealt(ranks):
            used = min(ranks, group.total)
            ranks -= used
            if used:
                found.append((group, -(-used // group.devices_per_host) if group.kind == "cpu" else used))
        return found

    def _utilisation(self, plan: Plan) -> float:
        """Of all devices together."""
        whole, groups = self.costs.traces[plan.precision].large, self._dealt(plan.mesh.size)
        peak = sum(each.device.peak(plan.precision) * each.total for each in groups)
        used = plan.mesh.size / sum(each.total for each in groups)
        flops = whole.flops / whole.samples * plan.global_batch
        return flops / (peak * used * sum(self.seconds(plan).values()))

    def _engine(self, plan: Plan) -> Engine:
        key = plan.precision, plan.compress
        if key not in self._engines:
            tensors = next(iter(self.costs.traces.values())).small.optimizer_tensors
            self._engines[key] = engine_of(plan, tensors)
        return self._engines[key]


def _total(unit: Unit) -> float:
    return unit.forward + unit.backward


def _share(plan: Plan, rank: int) -> int:
    begin, end = plan.share(plan.mesh.data_rank(rank))
    return end - begin
