"""Derives the tensor-parallel layouts of a model if the plan does not give them.

measure/ tries layouts on distributed tensors over a fake process group, estimate/ prices their collectives. This must
happen before the process joins a real process group.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard

from onecurve.apply.tensor import TensorAxis
from onecurve.describe.cluster import Link
from onecurve.describe.errors import OnecurveError
from onecurve.describe.layout import Layout
from onecurve.describe.plan import Plan, Precision
from onecurve.device.device import local_cpu
from onecurve.device.precision import autocast
from onecurve.estimate.collective import single_host_placement
from onecurve.measure.blocks import find_blocks, identity_blocks
from onecurve.measure.fake_process_group import fake_process_group
from onecurve.measure.layout_search import LayoutSearch, SplitContext, matrix_groups, pattern
from onecurve.measure.module_calls import ModuleCall, record_calls, run_one_of_each_kind
from onecurve.measure.profiler import BlockRun
from onecurve.measure.refusal import explain_trace_failure
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.planner.traced_model import TRACE_SAMPLES, TracedModel

_MAX_MATRIX_GROUPS = 8
"""Most groups of matrix products whose pairs are all tried; a transformer layer with cross-attention has 7."""

_log = logging.getLogger(__name__)


class DerivedLayouts(NamedTuple):
    """What a search for layouts found."""

    layouts: dict[str, Layout]
    """Parameter name patterns → layouts."""
    refusals: dict[str, str]
    """Blocks that stay unsplit → the reason."""


def layouts_for(plan: Plan, traced: TracedModel) -> dict[str, str]:
    """Return the layouts for the plan's tensor axis; refuse a degree that splits less of the model than degree 2."""
    derived = derive_layouts(traced, plan.mesh.tensor)
    _refuse_too_large_degree(plan, derived, traced)
    return {name: str(layout) for name, layout in derived.layouts.items()}


def _refuse_too_large_degree(plan: Plan, derived: DerivedLayouts, traced: TracedModel) -> None:
    """Attention heads, and other units that must stay together, limit the degree."""
    degree = plan.mesh.tensor
    at_degree_2 = derived if degree == 2 else derive_layouts(traced, 2)
    if not at_degree_2.layouts:
        reasons = "; ".join(f"{block or 'the model'}: {reason}" for block, reason in at_degree_2.refusals.items())
        raise OnecurveError(
            f"plan {plan}: nothing in this model can be split along 'tensor'; use another axis ({reasons})"
        )
    if unsplit := [name for name in at_degree_2.layouts if name not in derived.layouts]:
        smaller = [divisor for divisor in range(2, degree) if degree % divisor == 0]
        fitting = [n for n in smaller if not set(at_degree_2.layouts) - set(derive_layouts(traced, n).layouts)]
        raise OnecurveError(
            f"plan {plan}: tensor = {degree} cannot split {', '.join(unsplit)}, which tensor = 2 splits (heads or rows "
            f"cannot be divided by {degree}); try {', '.join(map(str, fitting)) or 'another axis'}"
        )


def refuse_unsupported_split(plan: Plan, traced: TracedModel) -> None:
    """Run the split model on fake tensors; refuse the plan if an operation does not run on sharded tensors."""

    def run() -> Tensor:
        with run_one_of_each_kind(traced.block_modules):
            return traced.loss(traced.micro())

    try:
        with traced.mode, DataDependentFallback():
            run()
    except Exception as error:  # the user's loss may read values, which fake tensors do not have: nothing can be tried
        explain_trace_failure(error, traced.model, "tensor")
        return
    with _layout_search(traced, plan, leaves_blocks_unsplit=False) as search:
        if search.run_split_model(traced.model, plan.layouts, run) is None:
            fix = "leave out 'sequence', or use another axis" if plan.sequence else "use another axis"
            raise OnecurveError(
                f"plan {plan}: the model does not run on tensors that are split so; {fix} ({search.refusal})"
            )


def derive_layouts(
    traced: TracedModel, degree: int, samples: int = TRACE_SAMPLES, precision: Precision = "fp32"
) -> DerivedLayouts:
    """Derive layouts for `degree` tensor-parallel ranks.

    The samples and the precision hardly influence the result. Passing those of later traces lets DTensor's caches serve
    both.
    """
    model, micro = traced.model, traced.micro(samples)
    with fake_process_group(degree) as mesh, autocast(precision, local_cpu()):
        blocks_once = run_one_of_each_kind({name: model.get_submodule(name) for name in find_blocks(model)})
        with torch.no_grad(), blocks_once:  # a trial's backward must stay inside its block
            calls = record_calls(model, lambda: traced.output(micro))
        search = LayoutSearch(
            mesh,
            traced.mode,
            _split_context(traced, mesh, sequence=False),
            lambda collective: single_host_placement(degree, Link()).seconds(collective.kind, collective.size),
        )
        blocks = find_blocks(model, {call.name for call in calls}) or [""]
        layouts: dict[str, Layout] = {}
        refusals: dict[str, str] = {}
        searched: dict[object, Mapping[str, Layout]] = {}
        for names in _identical(model, blocks):
            block_layouts = _layouts_of_block(search, names[0], calls, searched)
            if not block_layouts:
                refusals[names[0]] = search.refusal or "it has no pair of matrix products that can share a split"
                _log.info("tensor: no parameter of block %r can be split: %s", names[0], refusals[names[0]])
            prefixes = [pattern(names[0])] if len(blocks) == len(names) else names
            layouts |= {_join(prefix, name): layout for prefix in prefixes for name, layout in block_layouts.items()}
        if blocks != [""]:
            layouts |= _layouts_outside_blocks(search, traced, samples, blocks, calls)
        return DerivedLayouts(layouts, refusals)


def _layouts_of_block(
    search: LayoutSearch, name: str, calls: Sequence[ModuleCall], searched: dict[object, Mapping[str, Layout]]
) -> Mapping[str, Layout]:
    """Search the layouts of one block; names are relative to the block.

    Every pair of matrix products is tried, so a block with many of them (a stage of a UNet, which has transformer
    layers of its own) is searched block by block instead. `searched` has the results for blocks inside such blocks.
    """
    block = next(call for call in calls if call.name == name)
    inside = [replace(call, name=_relative(name, call.name)) for call in calls if _is_inside(name, call.name)]
    inner_blocks = find_blocks(block.module, {call.name for call in inside})
    if not inner_blocks or len(matrix_groups(inside)) <= _MAX_MATRIX_GROUPS:
        return search.block_layouts(replace(block, name=""), inside)
    layouts: dict[str, Layout] = {}
    for names in _identical(block.module, inner_blocks):
        inner = next(call for call in inside if call.name == names[0])
        kind = _kind(inner.module), tuple(inner.first_tensor.shape) if inner.first_tensor is not None else ()
        if kind not in searched:
            searched[kind] = _layouts_of_block(search, names[0], inside, searched)
        found = searched[kind]
        layouts |= {_join(each, parameter): layout for each in names for parameter, layout in found.items()}
    return layouts


def _layouts_outside_blocks(
    search: LayoutSearch, traced: TracedModel, samples: int, blocks: Sequence[str], calls: Sequence[ModuleCall]
) -> Mapping[str, Layout]:
    """Search the layouts of embeddings and the head, with the blocks replaced by identities."""
    outside = [call for call in calls if not any(_is_inside(name, call.name) for name in blocks)]
    outputs = {call.module: call.output for call in calls if call.name in blocks}
    sizes = [sum(parameter.numel() for parameter in block.parameters()) for block in traced.block_modules.values()]

    def run() -> Tensor:
        with identity_blocks(outputs):
            return traced.loss(traced.micro(samples))

    return search.table_layouts(traced.model, outside, max(sizes, default=0), run)


def split_block_runs(traced: TracedModel, plan: Plan, samples: int) -> dict[tuple[str, ...], BlockRun | None]:
    """Return the cost of each kind of block for one tensor-parallel rank, keyed by the names of the identical blocks.

    The value is None if the block cannot be split as the plan says.
    """
    runs: dict[tuple[str, ...], BlockRun | None] = {}
    kinds = traced.kinds(samples, plan.precision)
    with _layout_search(traced, plan) as search:
        for kind in kinds:
            block = replace(kind.first, name="")
            run = search.run_split_block(block, _layouts_inside(kind.first, plan.layouts))
            if run is None:
                _log.info("%s: block %r does not run: %s", plan, kind.first.name, search.refusal)
            runs[tuple(kind.names)] = run
    return runs


def split_run_outside_blocks(traced: TracedModel, plan: Plan, samples: int) -> BlockRun | None:
    """Return the cost of everything outside the blocks for one tensor-parallel rank; None if it cannot be split."""
    micro, modules = traced.micro(samples), traced.block_modules
    kinds = traced.kinds(samples, plan.precision)
    outputs = {modules[name]: kind.first.output for kind in kinds for name in kind.names}

    def run() -> Tensor:
        with identity_blocks(outputs):
            return traced.loss(micro)

    with _layout_search(traced, replace(plan, sequence=False)) as search:
        split_run = search.run_split_model(traced.model, plan.layouts, run)
        if split_run is None:
            _log.info("%s: the model outside its blocks does not run: %s", plan, search.refusal)
        return split_run


def _split_context(
    traced: TracedModel, mesh: DeviceMesh, sequence: bool, leaves_blocks_unsplit: bool = True
) -> SplitContext:
    """Split parameters as apply/ does. `leaves_blocks_unsplit`: of the full model, whose blocks are then identities."""
    inside_blocks = [module for block in traced.block_modules.values() for module in block.modules()]

    def split(module: nn.Module, layouts: Mapping[str, str]) -> AbstractContextManager[None]:
        left_out = inside_blocks if module is traced.model and leaves_blocks_unsplit else []
        return TensorAxis(mesh, layouts, sequence).temporarily_split(module, left_out)

    return split


@contextmanager
def _layout_search(traced: TracedModel, plan: Plan, leaves_blocks_unsplit: bool = True) -> Iterator[LayoutSearch]:
    with fake_process_group(plan.mesh.tensor) as mesh, autocast(plan.precision, local_cpu()):
        yield LayoutSearch(
            mesh,
            traced.mode,
            _split_context(traced, mesh, plan.sequence, leaves_blocks_unsplit),
            lambda _: 0.0,
            Shard(1) if plan.sequence else None,
        )


def _layouts_inside(block: ModuleCall, layouts: Mapping[str, str]) -> dict[str, str]:
    """Return the layouts of a block's parameters, keyed by their names relative to the block."""
    matching = {
        name: next((layout for p, layout in layouts.items() if fnmatchcase(f"{block.name}.{name}", p)), "")
        for name, _ in block.module.named_parameters()
    }
    return {name: layout for name, layout in matching.items() if layout}


def _identical(model: nn.Module, blocks: Sequence[str]) -> list[list[str]]:
    """Group blocks of the same class with the same parameter shapes: they get the same layouts."""
    kinds: dict[object, list[str]] = {}
    for name in blocks:
        kinds.setdefault(_kind(model.get_submodule(name)), []).append(name)
    return list(kinds.values())


def _kind(module: nn.Module) -> object:
    """Class and shapes of the parameters."""
    return type(module), tuple((name, tuple(parameter.shape)) for name, parameter in module.named_parameters())


def _join(block: str, name: str) -> str:
    return f"{block}.{name}" if block else name


def _is_inside(block: str, name: str) -> bool:
    return not block or name == block or name.startswith(block + ".")


def _relative(block: str, name: str) -> str:
    return name if not block else name[len(block) + 1 :]
