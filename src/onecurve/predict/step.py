"""A plan's step, term by term: computing, recomputing, what is sent along each axis, the bubble, the update.

Pipeline: m rounds through p stages take m + (p − 1)/v rounds' time, with v stages per rank (Narayanan et al. 2021,
arXiv:2104.04473, for 1f1b and interleaving); zero-bubble leaves about a third of the bubble (Qi et al. 2023,
arXiv:2401.10241). Sharding: gathers forward and backward, a reduce-scatter (Rajbhandari et al. 2020, arXiv:1910.02054).
"""

from dataclasses import dataclass

from onecurve.describe.cluster import Hosts
from onecurve.describe.engine import Engine
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Load, Module, Profile, When, Work
from onecurve.predict import compute
from onecurve.predict.collective import Place, place
from onecurve.predict.constants import Constants
from onecurve.predict.share import held, largest_share

_BUBBLE = {"1f1b": 1.0, "gpipe": 1.0, "interleaved": 1.0, "zero-bubble": 1 / 3}


@dataclass(frozen=True)
class Pass:
    """One module forward or backward, for one round."""

    computed: float
    sent: float
    """Along axes that cut the module itself, in the way."""
    host: float
    """What it takes the host to start all that, as far as it is longer: then the host sets the pace."""

    @property
    def total(self) -> float:
        return self.computed + self.sent + self.host


@dataclass(frozen=True)
class Times:
    """Of one module for one round."""

    forward: float
    backward: float
    again: float
    """Forward once more, where it is recomputed."""
    tensor: float
    host: float
    shard: float
    """Sent along the shard axis, as far as computing does not hide it."""


class Predictor:
    """For one engine on hosts that are alike."""

    def __init__(self, hosts: Hosts, engine: Engine | None = None, constants: Constants | None = None) -> None:
        self._hosts, self._engine, self._constants = hosts, engine or Engine(), constants or Constants()

    def seconds(self, profile: Profile, plan: Plan) -> dict[str, float]:
        """`profile`: of the plan's micro-batch, cut along its tensor axis, with its collectives."""
        blocks = [(self.times(block, plan, recomputed=True), block.count) for block in profile.blocks]
        outside = self.times(profile.outside, plan, recomputed=False)
        stages, rounds = plan.stage_count, plan.rounds
        per_rank = stages // plan.mesh.pipeline
        share = largest_share(profile, plan)
        busiest = {name: share * sum(getattr(t, name) * n for t, n in blocks) for name in _TERMS}
        found = {name: rounds * (busiest[name] + getattr(outside, name)) for name in _TERMS}
        found["pipeline"] = rounds * self._crossing(profile, plan, per_rank)
        found["bubble"] = self._bubble(sum(busiest.values()), found["pipeline"] / rounds, plan, per_rank)
        found["data"] = self._data(profile, plan, found["backward"] / rounds)
        found["update"] = self._update(profile, plan)
        found["other"] = self._constants.step + rounds * self._constants.round
        return {name: value / self._engine.efficiency for name, value in found.items()}

    def times(self, module: Module, plan: Plan, recomputed: bool) -> Times:
        forward = self._pass(module.work, "forward", module.work.forward, plan)
        backward = self._pass(module.work, "backward", module.work.backward, plan)
        again = self._again(module.work, plan) if recomputed else Pass(0.0, 0.0, 0.0)
        passes = (forward, backward, again)
        return Times(
            forward.computed,
            backward.computed,
            again.computed,
            sum(each.sent for each in passes),
            sum(each.host for each in passes),
            self._sharded(module, plan, forward.total, backward.total + again.total),
        )

    def _pass(self, work: Work, when: When, load: Load, plan: Plan) -> Pass:
        here = (each for each in work.collectives if each.when == when)
        exchanges = [each for each in here if plan.mesh.degrees[each.axis] > 1]
        computed = compute.seconds(load, self._hosts.device, plan.precision, self._constants)
        sent = sum(self._place(plan, each.axis).seconds(each.kind, each.size) for each in exchanges)
        started = load.operations + self._constants.exchange * len(exchanges)
        return Pass(computed, sent, max(0.0, started * self._constants.launch - computed - sent))

    def _again(self, work: Work, plan: Plan) -> Pass:
        """Nothing, all of forward, or all but its matrix products."""
        if plan.recompute == "none":
            return Pass(0.0, 0.0, 0.0)
        if plan.recompute == "full":
            return self._pass(work, "forward", work.forward, plan)
        attention = work.forward.flops.get("attention", 0)
        light = Load({"attention": attention}, work.forward.moved, work.forward.operations)
        return self._pass(Work(), "forward", light, plan)

    def _sharded(self, module: Module, plan: Plan, forward: float, backward: float) -> float:
        """What of gathering and scattering a block's parameters stands in the way: what takes longer than the computing
        beside it, and what it slows that down by."""
        if plan.mesh.shard == 1:
            return 0.0
        axis = self._place(plan, "shard")
        gather = axis.seconds("all_gather", module.parameters * self._engine.gathered_bytes)
        scatter = axis.seconds("reduce_scatter", module.trained * self._engine.gradient_bytes)
        before = gather if plan.sharding == "zero3" else gather / plan.rounds
        behind = (gather if plan.sharding == "zero3" else 0.0) + (
            scatter if plan.reduce == "round" or plan.rounds == 1 else scatter / plan.rounds
        )
        return self._exposed(before, forward) + self._exposed(behind, backward)

    def _exposed(self, sent: float, computed: float) -> float:
        return max(0.0, sent - computed) + self._constants.slowdown * min(sent, computed)

    def _crossing(self, profile: Profile, plan: Plan, per_rank: int) -> float:
        """Activations and their gradients between stages, one round."""
        if plan.mesh.pipeline == 1:
            return 0.0
        given = max((block.given for block in profile.blocks), default=0)
        axis = self._place(plan, "pipeline")
        link = axis.network if axis.neighbours == 1 else axis.inside
        return 2 * per_rank * (link.latency + given / link.bandwidth)

    def _bubble(self, busiest: float, crossing: float, plan: Plan, per_rank: int) -> float:
        idle = (plan.mesh.pipeline - 1) / per_rank
        return _BUBBLE[plan.schedule] * idle * (busiest + crossing)

    def _data(self, profile: Profile, plan: Plan, backward: float) -> float:
        """Gradients summed over copies, once a step."""
        if plan.mesh.replicate == 1:
            return 0.0
        elements = held(profile, plan) / plan.mesh.shard
        sent = self._place(plan, "replicate").seconds("all_reduce", elements * self._engine.gradient_bytes)
        return self._exposed(sent, backward) if self._engine.overlaps else sent

    def _update(self, profile: Profile, plan: Plan) -> float:
        elements = held(profile, plan) / plan.mesh.shard
        device = self._hosts.device
        return elements * self._engine.optimizer_bytes / (device.bandwidth * self._constants.memory)

    def _place(self, plan: Plan, axis: str) -> Place:
        return place(plan.mesh, axis, self._hosts, self._constants.inside, self._constants.network)


_TERMS = ("forward", "backward", "again", "tensor", "host", "shard")
