"""Time of a plan's step, term by term: compute, recomputation, communication along each axis, bubble, update.

Pipeline: m rounds through p stages take m + (p − 1)/v rounds' time, with v stages per rank (Narayanan et al. 2021,
arXiv:2104.04473, for 1f1b and interleaving). zero-bubble leaves about a third of the bubble, and two thirds if there is
only one round (Qi et al. 2023, arXiv:2401.10241). Sharding: all-gathers in forward and backward, and a reduce-scatter
(Rajbhandari et al. 2020, arXiv:1910.02054).
"""

from collections.abc import Callable

from onecurve.describe.cluster import HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.engine import Engine
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.profile import CollectiveKind, Profile
from onecurve.estimate.collective import AxisPlacement, place_axis
from onecurve.estimate.round import CalibrationFactors, RoundModel, RoundTimes, ShardUnit
from onecurve.estimate.stage_share import largest_and_last_share, trainable_per_rank


class Predictor:
    """Predicts step times for one engine on identical hosts."""

    def __init__(
        self,
        hosts: HostGroup,
        engine: Engine | None = None,
        constants: Constants | None = None,
        calibration: Callable[[Plan, int], CalibrationFactors] = lambda *_: (1.0, 1.0),
    ) -> None:
        self._hosts, self._engine, self._constants = hosts, engine or Engine(), constants or Constants()
        self._placements: dict[tuple[str, Mesh], AxisPlacement] = {}
        self._rounds = RoundModel(
            hosts,
            self._constants,
            self.placement,
            calibration,
            self._engine.recomputes_attention,
            self._engine.forward_passes,
        )

    def seconds(self, profile: Profile, plan: Plan) -> dict[str, float]:
        """Return the seconds of a step by cause.

        `profile` is for the plan's micro-batch and tensor-parallel degree, including its collectives.
        """
        times = self._rounds.of(profile, plan)
        rounds, blocks, outside = plan.rounds, times.blocks, times.outside
        *shard_of_blocks, shard_outside = (self._sharding(unit, plan) for unit in times.units)
        shard_inside = sum(shard_of_blocks)
        all_blocks, all_outside = blocks.total + shard_inside, outside.total + shard_outside
        share, has_last_stage = self._busiest(times, plan, all_blocks, all_outside)
        block_rounds, outside_rounds = rounds * share, rounds * has_last_stage
        terms = {
            "forward": block_rounds * blocks.forward + outside_rounds * outside.forward,
            "backward": block_rounds * blocks.backward + outside_rounds * outside.backward,
            "recompute": block_rounds * blocks.recompute,
            "tensor": block_rounds * blocks.tensor + outside_rounds * outside.tensor,
            "batch_norm": block_rounds * blocks.batch_norm + outside_rounds * outside.batch_norm,
            "host": block_rounds * blocks.host + outside_rounds * outside.host,
            "shard": block_rounds * shard_inside + outside_rounds * shard_outside,
        }
        transfer, transfers = self._stage_transfer(profile, plan), _exposed_transfers(plan)
        busiest = share * all_blocks + has_last_stage * all_outside
        terms["pipeline"] = rounds * transfers * transfer
        # A round crosses every stage boundary forward and backward; the busiest rank's transfers are counted above.
        idle = all_blocks + all_outside - busiest + (2 * (plan.stage_count - 1) - transfers) * transfer
        terms["bubble"] = self._bubble(busiest, all_blocks + all_outside - busiest, idle, plan)
        terms["replicate"] = self._gradient_reduction(profile, plan, terms["backward"] / rounds)
        terms["update"] = self._update(profile, plan)
        terms["other"] = self._overhead(rounds)
        efficiency = self._engine.efficiency
        return terms if efficiency == 1 else {name: value / efficiency for name, value in terms.items()}

    def compute_lower_bound(self, profile: Profile, plan: Plan) -> float:
        """Return a lower bound of the step time for every schedule, recomputation and sharding of the plan.

        It is the time of all computation, divided over the pipeline ranks without idle time.
        """
        times = self._rounds.of(profile, plan)
        total = times.blocks.total + times.outside.total
        return (plan.rounds * total / plan.mesh.pipeline + self._overhead(plan.rounds)) / self._engine.efficiency

    def round(self, profile: Profile, plan: Plan) -> RoundTimes:
        """Return the times of one round."""
        return self._rounds.of(profile, plan)

    def _busiest(self, times: RoundTimes, plan: Plan, all_blocks: float, all_outside: float) -> tuple[float, bool]:
        """Return the slowest pipeline rank's fraction of the blocks, and True if it has the last stage.

        The last stage also computes the head and the loss.
        """
        if plan.mesh.pipeline == 1:
            return 1.0, True
        weights = [unit.forward + unit.backward for unit in times.units[:-1]]
        largest, last = largest_and_last_share(times.profile, plan, weights)
        return (largest, False) if largest * all_blocks > last * all_blocks + all_outside else (last, True)

    def _sharding(self, unit: ShardUnit, plan: Plan) -> float:
        """Return the exposed seconds of all-gathering parameters and reduce-scattering gradients, per round.

        Exposed is the part that exceeds the overlapping compute, plus the slowdown of that compute.
        """
        if plan.mesh.shard == 1:
            return 0.0
        axis, module = self.placement(plan, "shard"), unit.module
        gather = self._with_copies(axis, "all_gather", module.parameters * self._engine.all_gather_bytes)
        scatter = self._with_copies(axis, "reduce_scatter", module.trainable * self._engine.gradient_bytes)
        # Under a pipeline, zero2 keeps the parameters gathered from the first round to the last.
        gathers_once = plan.sharding == "zero2" and plan.mesh.pipeline > 1
        passes = self._engine.forward_passes if plan.sharding == "zero3" else 1
        forward_gathers = 1 / plan.rounds if gathers_once else float(passes)
        backward_gathers = 1.0 if plan.sharding == "zero3" else 0.0
        scatters = 1.0 if plan.reduce == "round" else 1 / plan.rounds
        exposed = self._exposed(axis, forward_gathers * gather, unit.forward)
        exposed += self._exposed(axis, backward_gathers * gather + scatters * scatter, unit.backward)
        launch = self._constants.fsdp_ops_per_parameter * module.tensor_count * self._hosts.device.op_seconds
        return unit.count * (exposed + (forward_gathers + backward_gathers + scatters) * launch)

    def _with_copies(self, axis: AxisPlacement, kind: CollectiveKind, size: float) -> float:
        """Return the seconds of a collective with the copies into its flat buffer before it and out of it after it."""
        device = self._hosts.device
        copy = 2 * size / (device.memory_bandwidth * self._constants.memory_efficiency)
        return axis.seconds(kind, size) + 2 * copy

    def _exposed(self, axis: AxisPlacement, sent: float, computed: float) -> float:
        """Return the communication time that is not hidden by overlapping compute, plus the slowdown of the compute."""
        penalty = self._constants.overlap_penalty if axis.overlap_penalty is None else axis.overlap_penalty
        return max(0.0, sent - computed) + penalty * min(sent, computed)

    def _stage_transfer(self, profile: Profile, plan: Plan) -> float:
        """Return the seconds to send one round's activations from one stage to the next."""
        if plan.mesh.pipeline == 1:
            return 0.0
        sequence_shards = plan.mesh.tensor if plan.sequence else 1
        input_bytes = max((block.input_bytes for block in profile.blocks), default=0) / sequence_shards
        axis = self.placement(plan, "pipeline")
        link = axis.inter_host if axis.hosts > 1 else axis.intra_host  # the slowest transfer sets the pace
        return link.latency + input_bytes / link.bandwidth

    def _bubble(self, busiest: float, others: float, idle: float, plan: Plan) -> float:
        """Return the seconds that the busiest rank waits while the pipeline fills and drains.

        `idle` is the time that one round spends on the other ranks and in transfers, `others` the compute part of it.
        Schedules shorten the bubble by filling it with other rounds, as far as there are enough of them.
        """
        ranks, stages_per_rank = plan.mesh.pipeline, plan.stage_count // plan.mesh.pipeline
        if ranks == 1:
            return 0.0
        filled = min(1.0, (plan.rounds - 1) / (ranks - 1))
        if plan.schedule == "zero-bubble":
            return idle * (2 - filled) / 3
        return idle - min(filled * (ranks - 1) * busiest, others) * (1 - 1 / stages_per_rank)

    def _gradient_reduction(self, profile: Profile, plan: Plan, backward: float) -> float:
        """Return the exposed seconds of all-reducing gradients along `replicate`: once per step, or once per round if a
        pipeline reduce-scatters them after every round."""
        if plan.mesh.replicate == 1:
            return 0.0
        elements = trainable_per_rank(profile, plan) / plan.mesh.shard
        axis = self.placement(plan, "replicate")
        sent = axis.seconds("all_reduce", elements * self._engine.gradient_bytes)
        every_round = plan.reduce == "round" and plan.mesh.shard > 1 and plan.mesh.pipeline > 1
        reductions = plan.rounds if every_round else 1
        return reductions * (self._exposed(axis, sent, backward) if self._engine.overlaps else sent)

    def _update(self, profile: Profile, plan: Plan) -> float:
        elements = trainable_per_rank(profile, plan) / plan.mesh.shard
        device = self._hosts.device
        return elements * self._engine.update_bytes / (device.memory_bandwidth * self._constants.memory_efficiency)

    def _overhead(self, rounds: int) -> float:
        constants, op_seconds = self._constants, self._hosts.device.op_seconds
        return (
            constants.step_overhead_seconds
            + constants.step_overhead_ops * op_seconds
            + rounds * (constants.round_overhead_seconds + constants.round_overhead_ops * op_seconds)
        )

    def placement(self, plan: Plan, axis: str) -> AxisPlacement:
        """Return how the ranks of an axis are distributed over hosts."""
        key = axis, plan.mesh
        if key not in self._placements:
            self._placements[key] = place_axis(
                plan.mesh,
                axis,
                self._hosts,
                self._constants.intra_host_efficiency,
                self._constants.inter_host_efficiency,
            )
        return self._placements[key]


def _exposed_transfers(plan: Plan) -> int:
    """Return how often per round a pipeline rank waits for a transfer.

    Each of its stages waits for the previous and for the next stage. Sending overlaps with receiving.
    """
    ranks, stages_per_rank = plan.mesh.pipeline, plan.stage_count // plan.mesh.pipeline
    return 0 if ranks == 1 else 1 if ranks == 2 and stages_per_rank == 1 else 2 * stages_per_rank
