"""How a model is cut along the tensor axis where the plan does not say: measure lists, predict prices."""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from onecurve.apply.tensor import TensorAxis
from onecurve.describe.cluster import Link
from onecurve.describe.errors import OnecurveError
from onecurve.describe.layout import Layout
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Work
from onecurve.job.job import Job
from onecurve.measure.blocks import find_blocks, passed_over
from onecurve.measure.call import Call, alike_once, observe
from onecurve.measure.layouts import LayoutSearch, pattern
from onecurve.predict.collective import alone
from onecurve.train.objective import objective_of
from onecurve.verbs.data import Data
from onecurve.verbs.tracing import blocks_of, traceable

_SAMPLES = 2


def layouts_for(plan: Plan, job: Job, data: Data) -> dict[str, str]:
    """How the plan's tensor axis cuts the model. Before the process joins others: it pretends to be in a world of its
    own."""
    layouts = derive(job, data, plan.mesh.tensor)
    _refuse_if_less_split(plan, layouts, job, data)
    return {name: str(layout) for name, layout in layouts.items()}


def _refuse_if_less_split(plan: Plan, layouts: Mapping[str, Layout], job: Job, data: Data) -> None:
    """Heads, or whatever else must stay together, set a limit to the degree: beyond it only a part is split."""
    degree = plan.mesh.tensor
    most = layouts if degree == 2 else derive(job, data, 2)
    if not most:
        raise OnecurveError(f"plan {plan}: nothing in this model can be split along 'tensor'; use another axis")
    if lost := [name for name in most if name not in layouts]:
        tried = [each for each in range(2, degree) if degree % each == 0]
        fitting = [each for each in tried if not set(most) - set(derive(job, data, each))]
        raise OnecurveError(
            f"plan {plan}: tensor = {degree} cannot split {', '.join(lost)} (heads cannot be divided); "
            f"try {', '.join(map(str, fitting)) or 'another axis'}"
        )


def derive(job: Job, data: Data, degree: int) -> dict[str, Layout]:
    """Patterns of parameter names → layouts, for so many tensor ranks."""
    blueprint = traceable(job)
    assert blueprint.tape is not None
    model = blueprint.module
    micro = blueprint.faked(data.micro(0, min(_SAMPLES, job.global_batch)))
    with pretended_world(degree) as mesh:
        with alike_once({name: model.get_submodule(name) for name in find_blocks(model)}):
            calls = observe(model, lambda: micro.forward(model))
        search = LayoutSearch(
            mesh,
            blueprint.tape.mode,
            lambda module, layouts: TensorAxis(mesh, layouts, sequence=False).held(module),
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
                with passed_over(returned):
                    return objective_of(job.loss)(micro.forward(model), micro).sum

            found |= search.of_tables(model, outside, run)
        return found


def block_work(job: Job, data: Data, plan: Plan, samples: int) -> dict[tuple[str, ...], Work]:
    """What each block costs a tensor rank under the plan, by the names of those that are alike."""
    blueprint = traceable(job)
    assert blueprint.tape is not None
    read = data.micro(0, samples)
    model, micro = blueprint.module, blueprint.faked(read)
    blocks = {name: model.get_submodule(name) for name in blocks_of(blueprint, read)}
    with pretended_world(plan.mesh.tensor) as mesh:
        with torch.no_grad(), alike_once(blocks) as kinds:
            micro.forward(model)
        search = LayoutSearch(
            mesh,
            blueprint.tape.mode,
            lambda module, layouts: TensorAxis(mesh, layouts, plan.sequence).held(module),
            lambda _: 0.0,
            Shard(1) if plan.sequence else None,
        )
        return {
            tuple(kind.names): search.work_of(replace(kind.first, name=""), _inside(kind.first, plan.layouts))
            for kind in kinds.values()
        }


def _inside(block: Call, layouts: Mapping[str, str]) -> dict[str, str]:
    """Layouts by the names that parameters have within the block."""
    names = {name: f"{block.name}.{name}" for name, _ in block.module.named_parameters()}
    found = {
        name: next((each for p, each in layouts.items() if fnmatchcase(full, p)), "") for name, full in names.items()
    }
    return {name: layout for name, layout in found.items() if layout}


@contextmanager
def pretended_world(size: int) -> Iterator[DeviceMesh]:
    """This process as the first tensor rank of `size`: collectives are seen, not performed."""
    if dist.is_initialized():
        raise AssertionError("layouts are derived before a rank joins its world")
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
    logger = logging.getLogger("torch.distributed.tensor._collective_utils")
    level = logger.level
    logger.setLevel(logging.ERROR)  # it warns of an exchange that some trial would need
    try:
        # Under a name of its own: DTensor remembers what it finds out about a mesh, and would take the real one for it.
        yield DeviceMesh("cpu", torch.arange(size), mesh_dim_names=("pretended",))
    finally:
        logger.setLevel(level)
        dist.destroy_process_group()


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
