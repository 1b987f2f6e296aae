"""What a job costs, traced at the few points from which all others follow."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import get_args

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.describe.costs import BlockChain, Costs, Trace
from onecurve.describe.errors import OnecurveError
from onecurve.describe.layout import Layout
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.profile import Collective, ModuleProfile, Profile, When
from onecurve.measure.profiler import BlockRun
from onecurve.planner.job_profile import needs_whole, profile_of
from onecurve.planner.pipeline_stages import block_chain_of
from onecurve.planner.tensor_layouts import cut_blocks, cut_outside, derive
from onecurve.planner.traced_model import TracedModel

_MANY = 8
_READ_FOR = 0.1
CutRuns = tuple[BlockRun, dict[tuple[str, ...], BlockRun]]
"""What is outside the blocks, and the blocks, as one of two tensor ranks runs them."""


def costs_of(traced: TracedModel, precisions: Sequence[Precision], most_tensor: int) -> Costs:
    """`most_tensor`: ranks that a tensor axis may have at most."""
    job = traced.job
    refused: dict[str, str] = {}
    many = min(_MANY, job.global_batch)
    traces = {each: _trace(traced, each, many) for each in precisions}
    degrees, layouts = _tensor(traced, most_tensor, many, precisions[0], refused)
    runs = {each: _runs_cut(traced, each, many, layouts) for each in precisions} if degrees else {}
    for each, found in runs.items():
        halves = {sequence: _halved(traces[each].large, cut, traced, layouts) for sequence, cut in found.items()}
        traces[each] = replace(traces[each], tensor2=halves)
    row = _row(traced, traces[precisions[0]].small, refused)
    return Costs(
        traces,
        job.global_batch,
        traced.data.steps,
        row,
        degrees,
        layouts,
        _reading(traced, many),
        single_round=any(isinstance(each, _BatchNorm) for each in traced.model.modules()),
        needs_full_parameters=needs_whole(job),
        refused_axes=refused,
    )


def _trace(traced: TracedModel, precision: Precision, many: int) -> Trace:
    small, large = (_with_statistics(profile_of(traced, n, precision), traced) for n in (max(1, many // 2), many))
    return Trace(small, large)


def _with_statistics(profile: Profile, traced: TracedModel) -> Profile:
    """Batch norm that looks at all ranks' samples asks them once forward and once backward."""
    if traced.job.batch_norm != "sync":
        return profile
    inside = [each for block in traced.modules.values() for each in block.modules()]

    def exchanging(module: ModuleProfile, parts: Iterable[nn.Module]) -> ModuleProfile:
        norms = [each for each in parts if isinstance(each, _BatchNorm)]
        asked = [
            Collective("all_reduce", 8 * each.num_features, when, "data") for each in norms for when in get_args(When)
        ]
        work = replace(module.work, collectives=(*module.work.collectives, *asked))
        return replace(module, work=work)

    return replace(
        profile,
        blocks=tuple(exchanging(each, traced.modules[each.names[0]].modules()) for each in profile.blocks),
        outside=exchanging(profile.outside, (each for each in traced.model.modules() if each not in inside)),
    )


def _tensor(
    traced: TracedModel, most: int, samples: int, precision: Precision, refused: dict[str, str]
) -> tuple[tuple[int, ...], dict[str, str]]:
    """Degrees, and the layouts that all of them have."""
    if most < 2:
        return (), {}
    try:
        found = derive(traced, 2, samples, precision)
    except Exception as error:
        refused["tensor"] = f"its data flow could not be followed ({type(error).__name__})"
        return (), {}
    if not found:
        refused["tensor"] = "nothing in this model can be split along 'tensor'"
        return (), {}
    layouts = {name: str(layout) for name, layout in found.items()}
    powers = [1 << n for n in range(1, most.bit_length()) if 1 << n <= most]
    while len(powers) > 1 and not _can_be_cut(traced, powers[-1], layouts):
        powers.pop()
    return tuple(powers), layouts  # what comes apart into so many comes apart into half as many


def _can_be_cut(traced: TracedModel, degree: int, layouts: dict[str, str]) -> bool:
    """Whether the layouts hold for so many ranks: heads, or whatever else must stay together, set a limit."""
    parameters = dict(traced.model.named_parameters())
    for pattern, text in layouts.items():
        layout = Layout.parse(text)
        sizes = [tuple(each.shape) for name, each in parameters.items() if fnmatchcase(name, pattern)]
        if not all(layout.divides(size, degree) for size in sizes):
            return False
    plan = Plan(Mesh(tensor=degree), layouts=layouts)
    runs = cut_blocks(traced, plan, 1)
    return all(run is not None for run in runs.values())


def _runs_cut(traced: TracedModel, precision: Precision, samples: int, layouts: dict[str, str]) -> dict[bool, CutRuns]:
    """By whether the sequence is cut too; without those that cannot be."""
    found: dict[bool, CutRuns] = {}
    whole = Plan(Mesh(tensor=2), precision=precision, layouts=layouts)
    outside = cut_outside(traced, whole, samples)
    for sequence in (False, True):
        runs = cut_blocks(traced, replace(whole, sequence=sequence), samples)
        known = {names: run for names, run in runs.items() if run is not None}
        if outside is not None and len(known) == len(runs):
            found[sequence] = outside, known
    return found


def _halved(whole: Profile, cut: CutRuns, traced: TracedModel, layouts: dict[str, str]) -> Profile:
    outside, runs = cut
    return replace(
        whole,
        blocks=tuple(_cut(each, runs[each.names], traced, layouts) for each in whole.blocks),
        outside=_cut(whole.outside, outside, traced, layouts),
    )


def _cut(module: ModuleProfile, run: BlockRun, traced: TracedModel, layouts: dict[str, str]) -> ModuleProfile:
    """A module as one of two tensor ranks has it."""
    inside = [f"{name}." for name in traced.blocks]
    own = {
        name: each
        for name, each in traced.model.named_parameters()
        if (name.startswith(f"{module.names[0]}.") if module.names else not name.startswith(tuple(inside)))
    }
    cut = [name for name in own if any(fnmatchcase(name, pattern) for pattern in layouts)]
    half = sum(own[name].numel() for name in cut) // 2
    trainable = _trained(own[name] for name in cut) // 2
    return replace(
        module,
        parameters=module.parameters - half,
        trainable=module.trainable - trainable,
        parameter_bytes=module.parameter_bytes - sum(own[name].nbytes for name in cut) // 2,
        trainable_bytes=module.trainable_bytes - trainable * 4,
        work=run.work,
        activation_bytes=run.activation_bytes,
        matmul_output_bytes=run.matmul_output_bytes,
    )


def _trained(parameters: Iterable[Tensor]) -> int:
    return sum(each.numel() for each in parameters if each.requires_grad)


def _row(traced: TracedModel, profile: Profile, refused: dict[str, str]) -> BlockChain:
    try:
        return block_chain_of(traced, profile)
    except OnecurveError as error:
        refused["pipeline"] = str(error)
    except Exception as error:
        refused["pipeline"] = f"what flows between its blocks could not be followed ({type(error).__name__})"
    return BlockChain()


def _reading(traced: TracedModel, samples: int) -> float:
    """Seconds per sample, read here and now."""
    begin, read = time.perf_counter(), 0
    while time.perf_counter() - begin < _READ_FOR:
        traced.data.micro(read, read + samples)
        read += samples
        if read >= traced.data.order.size:
            break
    return (time.perf_counter() - begin) / read
