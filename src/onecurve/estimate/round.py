"""Time of one round of a model on one rank: forward, backward, recomputation, and collectives inside the model."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from onecurve.describe.cluster import HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.plan import Plan, Recompute, Schedule
from onecurve.describe.profile import ComputeLoad, Direction, ModuleProfile, Profile, Work
from onecurve.estimate import compute
from onecurve.estimate.collective import DATA, AxisPlacement

CalibrationFactors = tuple[float, float]
"""Measured over predicted compute time: of forward, and of backward."""


@dataclass(frozen=True)
class PassTime:
    """Seconds of one module's forward or backward pass."""

    computed: float = 0.0
    tensor: float = 0.0
    """Seconds of collectives between tensor ranks, which do not overlap with compute."""
    batch_norm: float = 0.0
    """Seconds of collectives for the statistics of synchronized batch norm, which do not overlap either."""
    host: float = 0.0
    """Seconds of launching operations, as far as they exceed the others: the device then waits for the host."""

    @property
    def total(self) -> float:
        return self.computed + self.tensor + self.batch_norm + self.host

    def repeated(self, times: int) -> "PassTime":
        return PassTime(times * self.computed, times * self.tensor, times * self.batch_norm, times * self.host)


@dataclass(frozen=True)
class ModuleTimes:
    """Seconds of one or several modules, by cause."""

    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    """Seconds of recomputing the forward during backward."""
    tensor: float = 0.0
    batch_norm: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.recompute + self.tensor + self.batch_norm + self.host


@dataclass(frozen=True)
class ShardUnit:
    """A module that is all-gathered and reduce-scattered as one unit, and the compute time that can hide this."""

    module: ModuleProfile
    count: int
    """Number of identical units."""
    forward: float
    backward: float
    """Seconds of backward, including recomputation."""


@dataclass(frozen=True)
class RoundTimes:
    """Seconds of one round over the entire model, before it is divided into pipeline stages."""

    profile: Profile
    blocks: ModuleTimes
    """The sum over all blocks."""
    outside: ModuleTimes
    units: tuple[ShardUnit, ...]
    """One unit per kind of block; the last unit is everything outside the blocks."""


class RoundModel:
    """Computes round times and caches them, since many plans share the same round."""

    def __init__(
        self,
        hosts: HostGroup,
        constants: Constants,
        place: Callable[[Plan, str], AxisPlacement],
        calibration: Callable[[Plan, int], CalibrationFactors] = lambda *_: (1.0, 1.0),
        recomputes_attention: bool = False,
        forward_passes: int = 1,
    ) -> None:
        """`place` returns the placement of an axis; `calibration` the factors for a plan and a number of samples."""
        self._forward_passes = forward_passes
        self._hosts, self._constants, self._place, self._calibration = hosts, constants, place, calibration
        self._recomputes_attention = recomputes_attention
        self._cache: dict[tuple[int, int, int, int, Recompute, Schedule, bool], RoundTimes] = {}

    def of(self, profile: Profile, plan: Plan) -> RoundTimes:
        """Return the times of one round. The cache identifies profiles by `id`, so the caller must keep them alive."""
        mesh = plan.mesh
        key = id(profile), mesh.tensor, mesh.expert, mesh.data, plan.recompute, plan.schedule, plan.compile
        if key not in self._cache:
            self._cache[key] = self._round(profile, plan)
        return self._cache[key]

    def _round(self, profile: Profile, plan: Plan) -> RoundTimes:
        units, module_times = [], []
        for module in profile.modules:
            recompute = "none" if module is profile.outside else plan.recompute
            forward, backward, recomputed = self._passes(module.work, plan, recompute, profile.samples)
            forward = forward.repeated(self._forward_passes)
            passes = forward, backward, recomputed
            units.append(ShardUnit(module, module.count, forward.total, backward.total + recomputed.total))
            module_times.append(
                ModuleTimes(
                    forward=forward.computed,
                    backward=backward.computed,
                    recompute=recomputed.computed,
                    tensor=sum(time.tensor for time in passes),
                    batch_norm=sum(time.batch_norm for time in passes),
                    host=sum(time.host for time in passes),
                )
            )
        *blocks, outside = module_times
        counts = [block.count for block in profile.blocks]
        sums = {
            field.name: sum(getattr(times, field.name) * count for times, count in zip(blocks, counts, strict=True))
            for field in fields(ModuleTimes)
        }
        return RoundTimes(profile, ModuleTimes(**sums), outside, tuple(units))

    def _passes(
        self, work: Work, plan: Plan, recompute: Recompute, samples: int
    ) -> tuple[PassTime, PassTime, PassTime]:
        """Return the times of forward, backward and recomputation.

        Full recomputation repeats all of forward; selective recomputation repeats all but the matrix products.
        """
        forward_factor, backward_factor = self._calibration(plan, samples)
        constants, operations = self._constants, work.forward.operations
        split_ops = (
            (constants.split_backward_factor - 1) * work.backward.operations if plan.schedule == "zero-bubble" else 0.0
        )
        backward = self._pass(work, "backward", work.backward, plan, backward_factor, split_ops)
        if recompute == "none":
            forward = self._pass(work, "forward", work.forward, plan, forward_factor)
            return forward, backward, PassTime()
        factor = constants.full_recompute_factor if recompute == "full" else constants.selective_recompute_factor
        checkpoint_ops = (factor - 1) * operations
        forward = self._pass(work, "forward", work.forward, plan, forward_factor, checkpoint_ops)
        if recompute == "full":
            return forward, backward, forward
        attention = work.forward.flops.get("attention", 0) if self._recomputes_attention else 0
        load = ComputeLoad({"attention": attention}, work.forward.bytes_moved, operations)
        repeated = Work() if self._recomputes_attention else work  # determines which collectives are repeated
        return forward, backward, self._pass(repeated, "forward", load, plan, forward_factor, checkpoint_ops)

    def _pass(
        self,
        work: Work,
        direction: Direction,
        load: ComputeLoad,
        plan: Plan,
        calibration: float,
        extra_ops: float = 0.0,
    ) -> PassTime:
        """Return the time of `load` with the collectives of `work`.

        `calibration` multiplies the predicted time of the model's own operations. `extra_ops` is additional host time,
        in multiples of one operation.
        """
        constants = self._constants
        collectives = [
            collective
            for collective in work.collectives
            if collective.when == direction and _degree(plan, collective.axis) > 1
        ]
        computed = calibration * compute.seconds(load, self._hosts.device, plan.precision, constants)
        tensor, batch_norm = (
            sum(
                self._place(plan, collective.axis).seconds(collective.kind, collective.size)
                for collective in collectives
                if (collective.axis == DATA) == between_all
            )
            for between_all in (False, True)  # the statistics of batch norm are those of all data-parallel ranks
        )
        dispatch = constants.dtensor_dispatch_factor if plan.mesh.tensor > 1 else 1.0
        launched = (
            (calibration + dispatch - 1) * load.operations
            + constants.collective_launch_ops * len(collectives)
            + extra_ops
        )
        if self._hosts.device.op_seconds:  # on a CPU launching and computing cannot overlap
            host = launched * self._hosts.device.op_seconds
        else:
            host = max(0.0, launched * constants.op_launch_seconds - computed - tensor - batch_norm)
        return PassTime(computed, tensor, batch_norm, host)


def _degree(plan: Plan, axis: str) -> int:
    return plan.mesh.data if axis == DATA else plan.mesh.degrees[axis]
