"""What any micro-batch costs on any number of tensor ranks, from few traces.

Along samples everything grows in a straight line: what a sample costs, and what a micro-batch costs beside (weights
that are read). Along `tensor` a part is cut evenly and the rest is on every rank.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onecurve.describe.costs import Costs, Trace
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.profile import Load, ModuleProfile, Profile, Work

Scale = Callable[..., float]
"""From one figure in several profiles to the same figure in the profile that is looked for."""


class Profiles:
    """Of one job, each made once."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._made: dict[tuple[Precision, int, int, bool], Profile] = {}

    def of(self, plan: Plan, samples: int) -> Profile:
        """What a rank does for so many samples of its round."""
        key = plan.precision, samples, plan.mesh.tensor, plan.sequence
        if key not in self._made:
            trace = self._costs.traces[plan.precision]
            whole = along_samples(trace, samples)
            if plan.mesh.tensor > 1:
                whole = along_tensor(whole, trace, plan.mesh.tensor, plan.sequence)
            self._made[key] = replace(whole, order=self._costs.block_chain.kinds)
        return self._made[key]


def along_samples(trace: Trace, samples: int) -> Profile:
    few, many = trace.small.samples, trace.large.samples

    def scale(small: float, large: float) -> float:
        slope = (large - small) / (many - few) if many > few else small / few
        beside = small - slope * few
        if beside < 0 or slope < 0:  # samples differ in length
            return large * samples / many
        return beside + slope * samples

    return _combined(scale, samples, trace.small, trace.large)


def along_tensor(whole: Profile, trace: Trace, degree: int, sequence: bool) -> Profile:
    """`whole`: of any number of samples. What it is cut to is known for the trace's number, and taken to be the same
    part of it."""
    halved, ratio = trace.tensor2[sequence], whole.samples / trace.large.samples

    def scale(here: float, one: float, two: float) -> float:
        cut = min(2 * (one - two), one)
        left = one - cut + cut / degree
        return here * left / one if one else left * ratio

    found = _combined(scale, whole.samples, whole, trace.large, halved)
    return replace(
        found,
        blocks=tuple(_exchanging(each, ratio) for each in found.blocks),
        outside=_exchanging(found.outside, ratio),
    )


def _exchanging(module: ModuleProfile, ratio: float) -> ModuleProfile:
    """Collectives send activations, which grow with the samples; the few sums of gradients among them are small."""
    sent = tuple(replace(each, size=int(each.size * ratio)) for each in module.work.collectives)
    return replace(module, work=replace(module.work, collectives=sent))


def _combined(scale: Scale, samples: int, *profiles: Profile) -> Profile:
    blocks = tuple(_module(scale, *same) for same in zip(*(each.blocks for each in profiles), strict=True))
    outside = _module(scale, *(each.outside for each in profiles))
    shared_activation_bytes = int(scale(*(each.shared_activation_bytes for each in profiles)))
    return Profile(samples, blocks, outside, shared_activation_bytes, profiles[0].optimizer_tensors)


def _module(scale: Scale, *modules: ModuleProfile) -> ModuleProfile:
    """What is no figure, and how many operations there are, is as in the last."""

    def figure(name: str) -> int:
        return int(scale(*(getattr(each, name) for each in modules)))

    def load(*loads: Load) -> Load:
        kinds = {kind for each in loads for kind in each.flops}
        flops = {kind: int(scale(*(each.flops.get(kind, 0) for each in loads))) for kind in kinds}
        return Load(flops, int(scale(*(each.bytes_moved for each in loads))), loads[-1].operations, loads[-1].matmuls)

    works = [each.work for each in modules]
    work = Work(
        load(*(each.forward for each in works)), load(*(each.backward for each in works)), works[-1].collectives
    )
    figures: dict[str, Any] = {name: figure(name) for name in _FIGURES}
    return replace(modules[-1], work=work, **figures)


_FIGURES = (
    "parameters",
    "trainable",
    "parameter_bytes",
    "trainable_bytes",
    "activation_bytes",
    "input_bytes",
    "matmul_output_bytes",
)
