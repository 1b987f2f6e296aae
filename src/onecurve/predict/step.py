"""A plan's step, term by term: computing, recomputing, what is sent along each axis, the bubble, the update.

Pipeline: m rounds through p stages take m + (p − 1)/v rounds' time, with v stages per rank (Narayanan et al. 2021,
arXiv:2104.04473, for 1f1b and interleaving); zero-bubble leaves about a third of the bubble, two thirds where there is
one round alone (Qi et al. 2023, arXiv:2401.10241). Sharding: gathers forward and backward, a reduce-scatter
(Rajbhandari et al. 2020, arXiv:1910.02054).
"""

from collections.abc import Callable

from onecurve.describe.cluster import HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.engine import Engine
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.profile import CollectiveKind, Profile
from onecurve.predict.collective import AxisPlacement, place
from onecurve.predict.round import Round, Rounds, Unit
from onecurve.predict.stage_share import most_and_last, trained


class Predictor:
    """For one engine on hosts that are alike."""

    def __init__(
        self,
        hosts: HostGroup,
        engine: Engine | None = None,
        constants: Constants | None = None,
        pace: Callable[[Plan, int], tuple[float, float]] = lambda *_: (1.0, 1.0),
    ) -> None:
        self._hosts, self._engine, self._constants = hosts, engine or Engine(), constants or Constants()
        self._places: dict[tuple[str, Mesh], AxisPlacement] = {}
        self._rounds = Rounds(hosts, self._constants, self._place, pace, self._engine.recomputes_attention)

    def seconds(self, profile: Profile, plan: Plan) -> dict[str, float]:
        """`profile`: of the plan's micro-batch, cut along its tensor axis, with its collectives."""
        one = self._rounds.of(profile, plan)
        rounds, blocks, outside = plan.rounds, one.blocks, one.outside
        *inside, beside = (self._sharded(unit, plan) for unit in one.units)
        sharded = sum(inside)
        everywhere, at_the_end = blocks.total + sharded, outside.total + beside
        share, last = self._busiest(one, plan, everywhere, at_the_end)
        most, end = rounds * share, rounds * last
        found = {
            "forward": most * blocks.forward + end * outside.forward,
            "backward": most * blocks.backward + end * outside.backward,
            "recompute": most * blocks.recompute,
            "tensor": most * blocks.tensor + end * outside.tensor,
            "host": most * blocks.host + end * outside.host,
            "shard": most * sharded + end * beside,
        }
        crossing, exchanges = self._crossing(profile, plan), _exchanges(plan)
        busiest = share * everywhere + last * at_the_end
        found["pipeline"] = rounds * exchanges * crossing
        # A round crosses every cut forward and backward; what the busiest rank exchanges is counted above.
        idle = everywhere + at_the_end - busiest + (2 * (plan.stage_count - 1) - exchanges) * crossing
        found["bubble"] = self._bubble(busiest, everywhere + at_the_end - busiest, idle, plan)
        found["replicate"] = self._data(profile, plan, found["backward"] / rounds)
        found["update"] = self._update(profile, plan)
        found["other"] = self._other(rounds)
        efficiency = self._engine.efficiency
        return found if efficiency == 1 else {name: value / efficiency for name, value in found.items()}

    def computing(self, profile: Profile, plan: Plan) -> float:
        """Seconds that no schedule, recomputation or sharding undercuts: all that is computed, spread over the stages
        without a rest."""
        one = self._rounds.of(profile, plan)
        whole = one.blocks.total + one.outside.total
        return (plan.rounds * whole / plan.mesh.pipeline + self._other(plan.rounds)) / self._engine.efficiency

    def round(self, profile: Profile, plan: Plan) -> Round:
        return self._rounds.of(profile, plan)

    def _busiest(self, one: Round, plan: Plan, blocks: float, outside: float) -> tuple[float, bool]:
        """The pipeline rank that sets the pace: its part of the blocks, and whether it has the last stage, with the
        head and the loss."""
        if plan.mesh.pipeline == 1:
            return 1.0, True
        each = [unit.forward + unit.backward for unit in one.units[:-1]]
        largest, last = most_and_last(one.profile, plan, each)
        return (largest, False) if largest * blocks > last * blocks + outside else (last, True)

    def _sharded(self, unit: Unit, plan: Plan) -> float:
        """What of gathering and scattering parameters stands in the way: what takes longer than the computing beside
        it, and what it slows that down by."""
        if plan.mesh.shard == 1:
            return 0.0
        axis, module = self._place(plan, "shard"), unit.module
        gather = self._copied(axis, "all_gather", module.parameters * self._engine.all_gather_bytes)
        scatter = self._copied(axis, "reduce_scatter", module.trainable * self._engine.gradient_bytes)
        stays = plan.sharding == "zero2" and plan.mesh.pipeline > 1  # from the first round to the last
        before = 1 / plan.rounds if stays else 1.0
        again = 1.0 if plan.sharding == "zero3" else 0.0
        scatters = 1.0 if plan.reduce == "round" else 1 / plan.rounds
        sent = self._exposed(axis, before * gather, unit.forward)
        sent += self._exposed(axis, again * gather + scatters * scatter, unit.backward)
        started = self._constants.fsdp_ops_per_parameter * module.tensor_count * self._hosts.device.op_seconds
        return unit.count * (sent + (before + again + scatters) * started)

    def _copied(self, axis: AxisPlacement, kind: CollectiveKind, size: float) -> float:
        """What is gathered is copied together before it is sent, and apart after it; so is what is scattered."""
        device = self._hosts.device
        copied = 2 * size / (device.memory_bandwidth * self._constants.memory_efficiency)
        return axis.seconds(kind, size) + 2 * copied

    def _exposed(self, axis: AxisPlacement, sent: float, computed: float) -> float:
        felt = self._constants.overlap_penalty if axis.overlap_penalty is None else axis.overlap_penalty
        return max(0.0, sent - computed) + felt * min(sent, computed)

    def _crossing(self, profile: Profile, plan: Plan) -> float:
        """Activations from one stage to the next, of one round."""
        if plan.mesh.pipeline == 1:
            return 0.0
        cut = plan.mesh.tensor if plan.sequence else 1
        input_bytes = max((block.input_bytes for block in profile.blocks), default=0) / cut
        axis = self._place(plan, "pipeline")
        link = axis.inter_host if axis.hosts > 1 else axis.intra_host  # the slowest crossing sets the pace
        return link.latency + input_bytes / link.bandwidth

    def _bubble(self, busiest: float, others: float, idle: float, plan: Plan) -> float:
        """A round takes its time on all the other ranks, and on the way to them, before the busiest one can go on by
        itself. Schedules that shorten this do so by filling it with other rounds, as far as there are any."""
        stages, per_rank = plan.mesh.pipeline, plan.stage_count // plan.mesh.pipeline
        if stages == 1:
            return 0.0
        filled = min(1.0, (plan.rounds - 1) / (stages - 1))
        if plan.schedule == "zero-bubble":
            return idle * (2 - filled) / 3
        return idle - min(filled * (stages - 1) * busiest, others) * (1 - 1 / per_rank)

    def _data(self, profile: Profile, plan: Plan, backward: float) -> float:
        """Gradients summed over copies, once a step; by a pipeline that scatters them each round, each round."""
        if plan.mesh.replicate == 1:
            return 0.0
        elements = trained(profile, plan) / plan.mesh.shard
        axis = self._place(plan, "replicate")
        sent = axis.seconds("all_reduce", elements * self._engine.gradient_bytes)
        every_round = plan.reduce == "round" and plan.mesh.shard > 1 and plan.mesh.pipeline > 1
        times = plan.rounds if every_round else 1
        return times * (self._exposed(axis, sent, backward) if self._engine.overlaps else sent)

    def _update(self, profile: Profile, plan: Plan) -> float:
        elements = trained(profile, plan) / plan.mesh.shard
        device = self._hosts.device
        return elements * self._engine.update_bytes / (device.memory_bandwidth * self._constants.memory_efficiency)

    def _other(self, rounds: int) -> float:
        constants, operation = self._constants, self._hosts.device.op_seconds
        return (
            constants.step_overhead_seconds
            + constants.step_overhead_ops * operation
            + rounds * (constants.round_overhead_seconds + constants.round_overhead_ops * operation)
        )

    def _place(self, plan: Plan, axis: str) -> AxisPlacement:
        key = axis, plan.mesh
        if key not in self._places:
            self._places[key] = place(
                plan.mesh,
                axis,
                self._hosts,
                self._constants.intra_host_efficiency,
                self._constants.inter_host_efficiency,
            )
        return self._places[key]


def _exchanges(plan: Plan) -> int:
    """How often a pipeline rank waits for its neighbours, each round: for the one before and the one behind, with each
    of its stages. What it sends goes beside what it receives."""
    stages, per_rank = plan.mesh.pipeline, plan.stage_count // plan.mesh.pipeline
    return 0 if stages == 1 else 1 if stages == 2 and per_rank == 1 else 2 * per_rank
