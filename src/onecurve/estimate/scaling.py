"""The profile of any micro-batch size and tensor-parallel degree, extrapolated from a few traces.

All quantities grow linearly with the samples: a fixed part (such as reading the weights) plus a part per sample. Along
`tensor`, one part of each quantity is divided by the degree and the rest is the same on every rank.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from onecurve.describe.costs import CostTrace, JobCosts
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.profile import ComputeLoad, ModuleProfile, Profile, Work

Scale = Callable[..., float]
"""A function from the values of one quantity in several profiles to its value in the extrapolated profile."""


class Profiles:
    """The extrapolated profiles of one job, cached."""

    def __init__(self, costs: JobCosts) -> None:
        self._costs = costs
        self._cache: dict[tuple[Precision, int, int, bool], Profile] = {}

    def of(self, plan: Plan, samples: int) -> Profile:
        """Return the profile of one tensor-parallel rank for a micro-batch of `samples`."""
        key = plan.precision, samples, plan.mesh.tensor, plan.sequence
        if key not in self._cache:
            trace = self._costs.traces[plan.precision]
            profile = along_samples(trace, samples)
            if plan.mesh.tensor > 1:
                profile = along_tensor(profile, trace, plan.mesh.tensor, plan.sequence)
            self._cache[key] = replace(profile, order=self._costs.block_chain.kinds)
        return self._cache[key]


def along_samples(trace: CostTrace, samples: int) -> Profile:
    """Extrapolate the profile of a single device to a number of samples."""
    few, many = trace.small.samples, trace.large.samples

    def scale(small: float, large: float) -> float:
        slope = (large - small) / (many - few) if many > few else small / few
        fixed = small - slope * few
        if fixed < 0 or slope < 0:  # the samples differ in length
            return large * samples / many
        return fixed + slope * samples

    return _combined(scale, samples, trace.small, trace.large)


def along_tensor(unsplit: Profile, trace: CostTrace, degree: int, sequence: bool) -> Profile:
    """Extrapolate a single device's profile to one rank of a tensor-parallel group.

    The fraction that is split is known for the number of samples in the trace and assumed to be the same for
    `unsplit`, which may have another number of samples.
    """
    split_in_two, ratio = trace.split_in_two(sequence), unsplit.samples / trace.large.samples
    assert split_in_two is not None

    def scale(value: float, one_rank: float, two_ranks: float) -> float:
        split = min(2 * (one_rank - two_ranks), one_rank)
        remaining = one_rank - split + split / degree
        return value * remaining / one_rank if one_rank else remaining * ratio

    profile = _combined(scale, unsplit.samples, unsplit, trace.large, split_in_two)
    return replace(
        profile,
        blocks=tuple(_scale_collectives(block, ratio) for block in profile.blocks),
        outside=_scale_collectives(profile.outside, ratio),
    )


def _scale_collectives(module: ModuleProfile, ratio: float) -> ModuleProfile:
    """Scale all collectives like activations. The gradient reductions among them do not grow, but they are small."""
    collectives = tuple(
        replace(collective, size=int(collective.size * ratio)) for collective in module.work.collectives
    )
    return replace(module, work=replace(module.work, collectives=collectives))


def _combined(scale: Scale, samples: int, *profiles: Profile) -> Profile:
    same_blocks = zip(*(profile.blocks for profile in profiles), strict=True)
    return Profile(
        samples=samples,
        blocks=tuple(_combined_module(scale, *modules) for modules in same_blocks),
        outside=_combined_module(scale, *(profile.outside for profile in profiles)),
        shared_activation_bytes=int(scale(*(profile.shared_activation_bytes for profile in profiles))),
        optimizer_tensors=profiles[0].optimizer_tensors,
    )


def _combined_module(scale: Scale, *modules: ModuleProfile) -> ModuleProfile:
    """Scale all quantities; names, numbers of operations and collectives are taken from the last module."""

    def scaled(name: str) -> int:
        return int(scale(*(getattr(module, name) for module in modules)))

    def load(*loads: ComputeLoad) -> ComputeLoad:
        kinds = {kind for load in loads for kind in load.flops}
        return ComputeLoad(
            flops={kind: int(scale(*(load.flops.get(kind, 0) for load in loads))) for kind in kinds},
            bytes_moved=int(scale(*(load.bytes_moved for load in loads))),
            operations=loads[-1].operations,
            matmuls=loads[-1].matmuls,
        )

    works = [module.work for module in modules]
    work = Work(
        load(*(work.forward for work in works)), load(*(work.backward for work in works)), works[-1].collectives
    )
    quantities: dict[str, Any] = {name: scaled(name) for name in _SCALED_FIELDS}
    return replace(modules[-1], work=work, **quantities)


_SCALED_FIELDS = (
    "parameters",
    "trainable",
    "parameter_bytes",
    "trainable_bytes",
    "activation_bytes",
    "input_bytes",
    "matmul_output_bytes",
)
