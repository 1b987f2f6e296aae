"""How a model is cut along the tensor axis where the plan does not say: measure lists, predict prices."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase

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
from onecurve.measure.blocks import find_blocks, identity_blocks
from onecurve.measure.fake_process_group import fake_process_group
from onecurve.measure.layout_search import LayoutSearch, SplitContext, pattern
from onecurve.measure.module_calls import ModuleCall, record_calls, run_one_of_each_kind
from onecurve.measure.profiler import BlockRun
from onecurve.planner.traced_model import FEW, TracedModel
from onecurve.predict.collective import alone


def layouts_for(plan: Plan, traced: TracedModel) -> dict[str, str]:
    """How the plan's tensor axis cuts the model. Before the process joins others: it pretends to be in a world of its
    own."""
    layouts = derive(traced, plan.mesh.tensor)
    _refuse_if_less_split(plan, layouts, traced)
    return {name: str(layout) for name, layout in layouts.items()}


def _refuse_if_less_split(plan: Plan, layouts: Mapping[str, Layout], traced: TracedModel) -> None:
    """Heads, or whatever else must stay together, set a limit to the degree: beyond it only a part is split."""
    degree = plan.mesh.tensor
    most = layouts if degree == 2 else derive(traced, 2)
    if not most:
        raise OnecurveError(f"plan {plan}: nothing in this model can be split along 'tensor'; use another axis")
    if lost := [name for name in most if name not in layouts]:
        tried = [each for each in range(2, degree) if degree % each == 0]
        fitting = [each for each in tried if not set(most) - set(derive(traced, each))]
        raise OnecurveError(
            f"plan {plan}: tensor = {degree} cannot split {', '.join(lost)} (heads cannot be divided); "
            f"try {', '.join(map(str, fitting)) or 'another axis'}"
        )


def derive(traced: TracedModel, degree: int, samples: int = FEW, precision: Precision = "fp32") -> dict[str, Layout]:
    """Patterns of parameter names → layouts, for so many tensor ranks. Samples and precision hardly matter, but
    what was found out about distributed tensors is remembered for others alike."""
    model, micro = traced.model, traced.micro(samples)
    with fake_process_group(degree) as mesh, autocast(precision, local_cpu()):
        with run_one_of_each_kind({name: model.get_submodule(name) for name in find_blocks(model)}):
            calls = record_calls(model, lambda: micro.forward(model))
        search = LayoutSearch(
            mesh,
            traced.mode,
            _cutting(traced, mesh, sequence=False),
            lambda collective: alone(degree, Link()).seconds(collective.kind, collective.size),
        )
        blocks = find_blocks(model, {call.name for call in calls}) or [""]
        found: dict[str, Layout] = {}
        for names in _alike(model, blocks):
            call = next(call for call in calls if call.name == names[0])
            inside = [each for each in calls if _is_below(call.name, each.name)]
            inside = [replace(each, name=_below(call.name, each.name)) for each in inside]
            layouts = search.of_block(replace(call, name=""), inside)
            written = [pattern(names[0])] if len(blocks) == len(names) else names
            found |= {_join(name, each): layout for name in written for each, layout in layouts.items()}
        if blocks != [""]:
            outside = [call for call in calls if not any(_is_below(name, call.name) for name in blocks)]
            returned = {call.module: call.output for call in calls if call.name in blocks}

            def run() -> Tensor:
                with identity_blocks(returned):
                    return traced.loss(micro)

            sizes = [sum(each.numel() for each in block.parameters()) for block in traced.modules.values()]
            found |= search.of_tables(model, outside, max(sizes, default=0), run)
        return found


def cut_blocks(traced: TracedModel, plan: Plan, samples: int) -> dict[tuple[str, ...], BlockRun | None]:
    """What each block costs a tensor rank under the plan, by the names of those that are alike; None where it cannot be
    cut so."""
    kinds = traced.kinds(samples, plan.precision)
    with _searching(traced, plan) as search:
        return {
            tuple(kind.names): search.run_cut(replace(kind.first, name=""), _inside(kind.first, plan.layouts))
            for kind in kinds
        }


def cut_outside(traced: TracedModel, plan: Plan, samples: int) -> BlockRun | None:
    """The same of all that is outside the blocks."""
    micro, modules = traced.micro(samples), traced.modules
    kinds = traced.kinds(samples, plan.precision)
    returned = {modules[name]: kind.first.output for kind in kinds for name in kind.names}

    def run() -> Tensor:
        with identity_blocks(returned):
            return traced.loss(micro)

    with _searching(traced, replace(plan, sequence=False)) as search:
        return search.run_model_cut(traced.model, plan.layouts, run)


def _cutting(traced: TracedModel, mesh: DeviceMesh, sequence: bool) -> SplitContext:
    """As apply/ would. Where the model is tried as a whole its blocks are passed over, and need not be cut."""
    inside = [each for block in traced.modules.values() for each in block.modules()]

    def cut(module: nn.Module, layouts: Mapping[str, str]) -> AbstractContextManager[None]:
        left_out = inside if module is traced.model else []
        return TensorAxis(mesh, layouts, sequence).temporarily_split(module, left_out)

    return cut


@contextmanager
def _searching(traced: TracedModel, plan: Plan) -> Iterator[LayoutSearch]:
    with fake_process_group(plan.mesh.tensor) as mesh, autocast(plan.precision, local_cpu()):
        yield LayoutSearch(
            mesh,
            traced.mode,
            _cutting(traced, mesh, plan.sequence),
            lambda _: 0.0,
            Shard(1) if plan.sequence else None,
        )


def _inside(block: ModuleCall, layouts: Mapping[str, str]) -> dict[str, str]:
    """Layouts by the names that parameters have within the block."""
    names = {name: f"{block.name}.{name}" for name, _ in block.module.named_parameters()}
    found = {
        name: next((each for p, each in layouts.items() if fnmatchcase(full, p)), "") for name, full in names.items()
    }
    return {name: layout for name, layout in found.items() if layout}


def _alike(model: nn.Module, blocks: Sequence[str]) -> list[list[str]]:
    """Blocks of one class and one size, which lie alike."""
    kinds: dict[object, list[str]] = {}
    for name in blocks:
        block = model.get_submodule(name)
        sizes = tuple((each, tuple(parameter.shape)) for each, parameter in block.named_parameters())
        kinds.setdefault((type(block), sizes), []).append(name)
    return list(kinds.values())


def _join(block: str, name: str) -> str:
    return f"{block}.{name}" if block else name


def _is_below(block: str, name: str) -> bool:
    return not block or name == block or name.startswith(block + ".")


def _below(block: str, name: str) -> str:
    return name if not block else name[len(block) + 1 :]
