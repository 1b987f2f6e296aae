"""One round of a model on one rank: forward, backward, what is computed again, what is sent along axes that cut it."""

from collections.abc import Callable
from dataclasses import dataclass, fields

from onecurve.describe.cluster import HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.plan import Plan, Recompute, Schedule
from onecurve.describe.profile import Load, ModuleProfile, Profile, When, Work
from onecurve.predict import compute
from onecurve.predict.collective import DATA, AxisPlacement


@dataclass(frozen=True)
class Pass:
    """One module forward or backward."""

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
    """Seconds, of a module or of several."""

    forward: float = 0.0
    backward: float = 0.0
    recompute: float = 0.0
    """Forward once more, where it is recomputed."""
    tensor: float = 0.0
    host: float = 0.0

    @property
    def total(self) -> float:
        return self.forward + self.backward + self.recompute + self.tensor + self.host


@dataclass(frozen=True)
class Unit:
    """What is gathered and scattered as one under `shard`, and the computing that may hide it."""

    module: ModuleProfile
    count: int
    forward: float
    backward: float


@dataclass(frozen=True)
class Round:
    """Of all blocks, and of what is outside them."""

    profile: Profile
    blocks: Times
    outside: Times
    units: tuple[Unit, ...]
    """The last one is what is outside."""


class Rounds:
    """Each worked out once: many plans have the same."""

    def __init__(
        self,
        hosts: HostGroup,
        constants: Constants,
        place: Callable[[Plan, str], AxisPlacement],
        pace: Callable[[Plan, int], tuple[float, float]] = lambda *_: (1.0, 1.0),
        repeats_attention: bool = False,
    ) -> None:
        """`pace`: how many times as long as predicted forward and backward of so many samples take."""
        self._hosts, self._constants, self._place, self._pace = hosts, constants, place, pace
        self._repeats_attention = repeats_attention
        self._made: dict[tuple[int, int, int, int, Recompute, Schedule], Round] = {}

    def of(self, profile: Profile, plan: Plan) -> Round:
        key = id(profile), plan.mesh.tensor, plan.mesh.expert, plan.mesh.data, plan.recompute, plan.schedule
        if key not in self._made:
            self._made[key] = self._round(profile, plan)
        return self._made[key]

    def _round(self, profile: Profile, plan: Plan) -> Round:
        units, found = [], []
        for module in profile.modules:
            recompute = "none" if module is profile.outside else plan.recompute
            passes = self._passes(module.work, plan, recompute, profile.samples)
            forward, backward, again = passes
            units.append(Unit(module, module.count, forward.total, backward.total + again.total))
            found.append(
                Times(
                    forward.computed,
                    backward.computed,
                    again.computed,
                    sum(each.sent for each in passes),
                    sum(each.host for each in passes),
                )
            )
        *blocks, outside = found
        counts = [block.count for block in profile.blocks]
        summed = {
            each.name: sum(getattr(times, each.name) * n for times, n in zip(blocks, counts, strict=True))
            for each in fields(Times)
        }
        return Round(profile, Times(**summed), outside, tuple(units))

    def _passes(self, work: Work, plan: Plan, recompute: Recompute, samples: int) -> tuple[Pass, Pass, Pass]:
        """Forward, backward, and what is computed again: nothing, all of forward, or all but its matrix products."""
        onward, back = self._pace(plan, samples)
        constants, operations = self._constants, work.forward.operations
        parted = (
            (constants.split_backward_factor - 1) * work.backward.operations if plan.schedule == "zero-bubble" else 0.0
        )
        backward = self._pass(work, "backward", work.backward, plan, back, parted)
        if recompute == "none":
            return self._pass(work, "forward", work.forward, plan, onward), backward, Pass(0.0, 0.0, 0.0)
        more = (constants.full_recompute_factor if recompute == "full" else constants.selective_recompute_factor) - 1
        forward = self._pass(work, "forward", work.forward, plan, onward, more * operations)
        if recompute == "full":
            return forward, backward, forward
        attention = work.forward.flops.get("attention", 0) if self._repeats_attention else 0
        light = Load({"attention": attention}, work.forward.bytes_moved, operations)
        sent = Work() if self._repeats_attention else work
        return forward, backward, self._pass(sent, "forward", light, plan, onward, more * operations)

    def _pass(self, work: Work, when: When, load: Load, plan: Plan, pace: float, beside: float = 0.0) -> Pass:
        """`pace`: how many times as long as predicted the model's own operations take. `beside`: what the host does
        beside them, in operations."""
        constants = self._constants
        here = (each for each in work.collectives if each.when == when)
        exchanges = [each for each in here if _degree(plan, each.axis) > 1]
        computed = pace * compute.seconds(load, self._hosts.device, plan.precision, constants)
        sent = sum(self._place(plan, each.axis).seconds(each.kind, each.size) for each in exchanges)
        cut = constants.dtensor_dispatch_factor if plan.mesh.tensor > 1 else 1.0
        started = (pace + cut - 1) * load.operations + constants.collective_launch_ops * len(exchanges) + beside
        if self._hosts.device.op_seconds:  # the host computes itself: it does one after the other
            return Pass(computed, sent, started * self._hosts.device.op_seconds)
        return Pass(computed, sent, max(0.0, started * constants.op_launch_seconds - computed - sent))


def _degree(plan: Plan, axis: str) -> int:
    return plan.mesh.data if axis == DATA else plan.mesh.degrees[axis]
