"""What a job costs, traced at the few points from which all others follow."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import get_args

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.describe.costs import Costs, Row, Trace
from onecurve.describe.errors import OnecurveError
from onecurve.describe.layout import Layout
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.profile import Collective, Module, Profile, When
from onecurve.measure.profile import BlockRun
from onecurve.verbs.layouts import cut_blocks, cut_outside, derive
from onecurve.verbs.profile import needs_whole, profile_of
from onecurve.verbs.stages import row_of
from onecurve.verbs.tracing import Traceable

_MANY = 8
_READ_FOR = 0.1
CutRuns = tuple[BlockRun, dict[tuple[str, ...], BlockRun]]
"""What is outside the blocks, and the blocks, as one of two tensor ranks runs them."""


def costs_of(traceable: Traceable, precisions: Sequence[Precision], most_tensor: int) -> Costs:
    """`most_tensor`: ranks that a tensor axis may have at most."""
    job = traceable.job
    refused: dict[str, str] = {}
    many = min(_MANY, job.global_batch)
    traces = {each: _trace(traceable, each, many) for each in precisions}
    degrees, layouts = _tensor(traceable, most_tensor, many, precisions[0], refused)
    runs = {each: _runs_cut(traceable, each, many, layouts) for each in precisions} if degrees else {}
    for each, found in runs.items():
        halves = {sequence: _halved(traces[each].many, cut, traceable, layouts) for sequence, cut in found.items()}
        traces[each] = replace(traces[each], halved=halves)
    row = _row(traceable, traces[precisions[0]].few, refused)
    return Costs(
        traces,
        job.global_batch,
        traceable.data.steps,
        row,
        degrees,
        layouts,
        _reading(traceable, many),
        whole_rounds=any(isinstance(each, _BatchNorm) for each in traceable.model.modules()),
        whole_parameters=needs_whole(job),
        refused=refused,
    )


def _trace(traceable: Traceable, precision: Precision, many: int) -> Trace:
    small, large = (_with_statistics(profile_of(traceable, n, precision), traceable) for n in (max(1, many // 2), many))
    return Trace(small, large)


def _with_statistics(profile: Profile, traceable: Traceable) -> Profile:
    """Batch norm that looks at all ranks' samples asks them once forward and once backward."""
    if traceable.job.batch_norm != "sync":
        return profile
    inside = [each for block in traceable.modules.values() for each in block.modules()]

    def exchanging(module: Module, parts: Iterable[nn.Module]) -> Module:
        norms = [each for each in parts if isinstance(each, _BatchNorm)]
        asked = [
            Collective("all_reduce", 8 * each.num_features, when, "data") for each in norms for when in get_args(When)
        ]
        work = replace(module.work, collectives=(*module.work.collectives, *asked))
        return replace(module, work=work)

    return replace(
        profile,
        blocks=tuple(exchanging(each, traceable.modules[each.names[0]].modules()) for each in profile.blocks),
        outside=exchanging(profile.outside, (each for each in traceable.model.modules() if each not in inside)),
    )


def _tensor(
    traceable: Traceable, most: int, samples: int, precision: Precision, refused: dict[str, str]
) -> tuple[tuple[int, ...], dict[str, str]]:
    """Degrees, and the layouts that all of them have."""
    if most < 2:
        return (), {}
    try:
        found = derive(traceable, 2, samples, precision)
    except Exception as error:
        refused["tensor"] = f"its data flow could not be followed ({type(error).__name__})"
        return (), {}
    if not found:
        refused["tensor"] = "nothing in this model can be split along 'tensor'"
        return (), {}
    layouts = {name: str(layout) for name, layout in found.items()}
    powers = [1 << n for n in range(1, most.bit_length()) if 1 << n <= most]
    while len(powers) > 1 and not _can_be_cut(traceable, powers[-1], layouts):
        powers.pop()
    return tuple(powers), layouts  # what comes apart into so many comes apart into half as many


def _can_be_cut(traceable: Traceable, degree: int, layouts: dict[str, str]) -> bool:
    """Whether the layouts hold for so many ranks: heads, or whatever else must stay together, set a limit."""
    parameters = dict(traceable.model.named_parameters())
    for pattern, text in layouts.items():
        layout = Layout.parse(text)
        sizes = [tuple(each.shape) for name, each in parameters.items() if fnmatchcase(name, pattern)]
        if not all(layout.divides(size, degree) for size in sizes):
            return False
    plan = Plan(Mesh(tensor=degree), layouts=layouts)
    runs = cut_blocks(traceable, plan, 1)
    return all(run is not None for run in runs.values())


def _runs_cut(traceable: Traceable, precision: Precision, samples: int, layouts: dict[str, str]) -> dict[bool, CutRuns]:
    """By whether the sequence is cut too; without those that cannot be."""
    found: dict[bool, CutRuns] = {}
    whole = Plan(Mesh(tensor=2), precision=precision, layouts=layouts)
    outside = cut_outside(traceable, whole, samples)
    for sequence in (False, True):
        runs = cut_blocks(traceable, replace(whole, sequence=sequence), samples)
        known = {names: run for names, run in runs.items() if run is not None}
        if outside is not None and len(known) == len(runs):
            found[sequence] = outside, known
    return found


def _halved(whole: Profile, cut: CutRuns, traceable: Traceable, layouts: dict[str, str]) -> Profile:
    outside, runs = cut
    return replace(
        whole,
        blocks=tuple(_cut(each, runs[each.names], traceable, layouts) for each in whole.blocks),
        outside=_cut(whole.outside, outside, traceable, layouts),
    )


def _cut(module: Module, run: BlockRun, traceable: Traceable, layouts: dict[str, str]) -> Module:
    """A module as one of two tensor ranks has it."""
    inside = [f"{name}." for name in traceable.blocks]
    own = {
        name: each
        for name, each in traceable.model.named_parameters()
        if (name.startswith(f"{module.names[0]}.") if module.names else not name.startswith(tuple(inside)))
    }
    cut = [name for name in own if any(fnmatchcase(name, pattern) for pattern in layouts)]
    half = sum(own[name].numel() for name in cut) // 2
    trained = _trained(own[name] for name in cut) // 2
    return replace(
        module,
        parameters=module.parameters - half,
        trained=module.trained - trained,
        parameter_bytes=module.parameter_bytes - sum(own[name].nbytes for name in cut) // 2,
        trained_bytes=module.trained_bytes - trained * 4,
        work=run.work,
        kept=run.kept,
        dear=run.dear,
    )


def _trained(parameters: Iterable[Tensor]) -> int:
    return sum(each.numel() for each in parameters if each.requires_grad)


def _row(traceable: Traceable, profile: Profile, refused: dict[str, str]) -> Row:
    try:
        return row_of(traceable, profile)
    except OnecurveError as error:
        refused["pipeline"] = str(error)
    except Exception as error:
        refused["pipeline"] = f"what flows between its blocks could not be followed ({type(error).__name__})"
    return Row()


def _reading(traceable: Traceable, samples: int) -> float:
    """Seconds per sample, read here and now."""
    begin, read = time.perf_counter(), 0
    while time.perf_counter() - begin < _READ_FOR:
        traceable.data.micro(read, read + samples)
        read += samples
        if read >= traceable.data.order.size:
            break
    return (time.perf_counter() - begin) / read
