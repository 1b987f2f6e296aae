"""What a plan takes on a cluster: its estimate."""

from dataclasses import replace

from onecurve.describe.cluster import Cluster, Hosts, Link
from onecurve.describe.constants import Constants
from onecurve.describe.costs import Costs, Row
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Profile
from onecurve.predict.memory import components
from onecurve.predict.own import engine_of
from onecurve.predict.pace import Pace
from onecurve.predict.round import Unit
from onecurve.predict.scaling import Profiles
from onecurve.predict.step import Predictor

Shares = tuple[tuple[Hosts, int], ...]
"""Machines that are alike, and the samples that one of their ranks takes each round."""


class Forecast:
    """Of one job on one cluster."""

    def __init__(self, cluster: Cluster, costs: Costs, constants: Constants | None = None) -> None:
        self.cluster, self.costs, self.constants = cluster, costs, constants or cluster.constants
        self._profiles = Profiles(costs)
        self._pace = Pace(cluster, costs, self._profiles)
        self._predictors: dict[object, Predictor] = {}
        self._groups: dict[int, tuple[Hosts, ...]] = {}

    def estimate(self, plan: Plan) -> Estimate:
        return Estimate(
            plan,
            self.seconds(plan),
            self.memory(plan),
            self.available(plan),
            self._utilisation(plan),
            self.costs.steps,
            self.constants.error,
            self.cluster.groups[0].price,
        )

    def seconds(self, plan: Plan) -> dict[str, float]:
        """Of a step, by cause: those of the slowest ranks. Who is faster waits for them."""
        return max((self._seconds(plan, *each) for each in self._shares(plan)), key=lambda each: sum(each.values()))

    def memory(self, plan: Plan) -> dict[str, float]:
        """Bytes of the fullest rank, by component."""
        samples = max(share for _, share in self._shares(plan))
        engine = engine_of(plan, self._optimizer_tensors)
        overhead = self.cluster.groups[0].overhead
        return components(self._profiles.of(plan, samples), plan, engine, overhead)

    def available(self, plan: Plan) -> float:
        return min(hosts.device.memory for hosts, _ in self._shares(plan))

    def row(self, plan: Plan) -> Row:
        """The blocks weighed by the time they take under the plan, in parts of the first one's."""
        row, (hosts, samples) = self.costs.row, self._shares(plan)[0]
        if not row.kinds:
            return row
        one = self._predictor(plan, hosts).round(self._profiles.of(plan, samples), plan)
        *blocks, outside = (round(_total(unit) / _total(one.units[0]), 1) for unit in one.units)
        weighed = tuple((blocks[kind], size) for kind, (_, size) in zip(row.kinds, row.blocks, strict=True))
        return Row(weighed, row.first, (outside, row.last[1]))

    def _seconds(self, plan: Plan, hosts: Hosts, samples: int) -> dict[str, float]:
        found = self._predictor(plan, hosts).seconds(self._profiles.of(plan, samples), plan)
        if self.constants.pace != 1:
            found = {name: value * self.constants.pace for name, value in found.items()}
        reading = self.costs.reading * samples * plan.rounds
        return {**found, "loading": max(0.0, reading - sum(found.values()))}

    def _predictor(self, plan: Plan, hosts: Hosts) -> Predictor:
        key = hosts.device.name, hosts.devices, plan.precision, plan.compress
        if key not in self._predictors:
            engine = engine_of(plan, self._optimizer_tensors)
            threads = max(1, hosts.cores)
            self._predictors[key] = Predictor(
                hosts, engine, self.constants, lambda plan, samples: self._pace.of(plan, threads, samples)
            )
        return self._predictors[key]

    def _shares(self, plan: Plan) -> Shares:
        """By the groups of the cluster, as ranks are dealt out to them in order."""
        groups = self._dealt(plan.mesh.size)
        if len(groups) == 1:
            shares = plan.micro_batch
            return ((groups[0], max(shares) if isinstance(shares, tuple) else shares),)
        slowest = Link(max(each.network.latency for each in groups), min(each.network.bandwidth for each in groups))
        found, begin = [], 0
        for group in groups:
            ranks = range(begin, min(begin + group.total, plan.mesh.size))
            begin += group.total
            if ranks:
                most = max(_share(plan, rank) for rank in (ranks[0], ranks[-1]))
                found.append((replace(group, network=slowest), most))
        return tuple(found)

    def _dealt(self, ranks: int) -> tuple[Hosts, ...]:
        if ranks not in self._groups:
            self._groups[ranks] = self.cluster.as_ranks(ranks)
        return self._groups[ranks]

    def _utilisation(self, plan: Plan) -> float:
        """Of all devices together."""
        flops = sum(self._whole(plan).flops * share for share in (1,)) / self._whole(plan).samples
        groups = self.cluster.as_ranks(plan.mesh.size)
        peak = sum(each.device.peak(plan.precision) * each.total for each in groups)
        used = plan.mesh.size / sum(each.total for each in groups)
        return flops * plan.global_batch / (peak * used * sum(self.seconds(plan).values()))

    def _whole(self, plan: Plan) -> Profile:
        return self.costs.traces[plan.precision].many

    @property
    def _optimizer_tensors(self) -> int:
        return next(iter(self.costs.traces.values())).few.optimizer_tensors


def _total(unit: Unit) -> float:
    return unit.forward + unit.backward


def _share(plan: Plan, rank: int) -> int:
    begin, end = plan.share(plan.mesh.data_rank(rank))
    return end - begin
