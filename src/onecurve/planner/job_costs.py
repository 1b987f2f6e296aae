"""The costs of a job, traced at the few points from which the predictor extrapolates to every plan."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import get_args

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.describe.changed_buffers import ChangedBuffers
from onecurve.describe.costs import BlockChain, CostTrace, JobCosts
from onecurve.describe.layout import Layout
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.profile import Collective, Direction, ModuleProfile, Profile
from onecurve.job.embedding import why_tables_are_not_split
from onecurve.job.job import Job
from onecurve.job.whole_batch import TWO_PASSES, WholeBatchLoss
from onecurve.measure.profiler import BlockRun
from onecurve.measure.refusal import explain_trace_failure
from onecurve.model.shared_memory import kept_whole
from onecurve.planner.job_profile import needs_full_parameters, profile_of
from onecurve.planner.pipeline_stages import block_chain_of
from onecurve.planner.tensor_layouts import derive_layouts, split_block_runs, split_run_outside_blocks
from onecurve.planner.tokens import tokens_of
from onecurve.planner.traced_model import TracedModel

_LARGE_MICRO_BATCH = 8
"""Samples of the larger of the two traced micro-batches."""
_READ_SECONDS = 0.1
"""Time spent on measuring how long a sample takes to read."""

SplitRuns = tuple[BlockRun, dict[tuple[str, ...], BlockRun]]
"""The costs of one of two tensor-parallel ranks: everything outside the blocks, and each kind of block."""


def costs_of(traced: TracedModel, precisions: Sequence[Precision], max_tensor_degree: int) -> JobCosts:
    """Trace the job in each precision, for tensor-parallel degrees up to `max_tensor_degree`."""
    job = traced.job
    reason = why_tables_are_not_split(traced.model)
    refused = dict.fromkeys(("tensor", "pipeline"), reason) if reason else {}
    is_whole_batch = isinstance(job.loss, WholeBatchLoss)
    if is_whole_batch:
        refused["pipeline"] = TWO_PASSES
    samples = min(_LARGE_MICRO_BATCH, job.global_batch)
    traces = {precision: _trace(traced, precision, samples) for precision in precisions}
    degrees, layouts = _tensor_degrees(traced, max_tensor_degree, samples, precisions[0], refused)
    if degrees:
        for precision in precisions:
            runs = _split_runs(traced, precision, samples, layouts)
            split = {
                sequence: _split_profile(traces[precision].large, run, traced, layouts)
                for sequence, run in runs.items()
            }
            traces[precision] = replace(traces[precision], tensor2=split.get(False), sequence2=split.get(True))
        if not any(trace.tensor2 or trace.sequence2 for trace in traces.values()):
            refused["tensor"] = "the split model could not be traced (see --verbose)"
            degrees, layouts = (), {}
    has_batch_norm = any(isinstance(module, _BatchNorm) for module in traced.model.modules())
    return JobCosts(
        traces=traces,
        global_batch=job.global_batch,
        steps=traced.data.steps,
        block_chain=_block_chain(traced, traces[precisions[0]].small, refused),
        tensor_degrees=degrees,
        layouts=layouts,
        read_seconds_per_sample=_read_seconds(traced, samples),
        forward_passes=2 if is_whole_batch else 1,
        has_batch_norm=has_batch_norm,
        syncs_batch_norm=has_batch_norm and job.batch_norm == "sync",
        changed_buffers=_changed_buffers(traced),
        averages_buffers=job.buffers == "average",
        kept_whole=kept_whole(traced.model),
        needs_full_parameters=needs_full_parameters(job),
        tokens=tokens_of(traced.micro(samples)),
        snapshots=_snapshots(job),
        refused_axes=refused,
    )


def _snapshots(job: Job) -> int:
    """How many copies of the training state a run keeps: one that is being saved, or two that it can continue from."""
    if job.save is None:
        return 0
    return 1 if job.save.memory is None else 2


def _changed_buffers(traced: TracedModel) -> ChangedBuffers:
    try:
        return traced.changed_buffers
    except Exception as error:  # the model, run on fake tensors, may raise anything
        explain_trace_failure(error, traced.model, "changed buffers")
        return ChangedBuffers()


def _trace(traced: TracedModel, precision: Precision, samples: int) -> CostTrace:
    small, large = (
        _with_batch_norm_collectives(profile_of(traced, n, precision), traced) for n in (max(1, samples // 2), samples)
    )
    return CostTrace(small, large)


def _with_batch_norm_collectives(profile: Profile, traced: TracedModel) -> Profile:
    """Add the all-reduces of synchronized batch norm: one forward and one backward per norm."""
    if traced.job.batch_norm != "sync":
        return profile
    inside_blocks = {id(module) for block in traced.block_modules.values() for module in block.modules()}

    def with_collectives(profile: ModuleProfile, modules: Iterable[nn.Module]) -> ModuleProfile:
        added = [
            Collective("all_reduce", 8 * module.num_features, direction, "data")
            for module in modules
            if isinstance(module, _BatchNorm)
            for direction in get_args(Direction)
        ]
        work = replace(profile.work, collectives=(*profile.work.collectives, *added))
        return replace(profile, work=work)

    outside = (module for module in traced.model.modules() if id(module) not in inside_blocks)
    return replace(
        profile,
        blocks=tuple(
            with_collectives(block, traced.block_modules[block.names[0]].modules()) for block in profile.blocks
        ),
        outside=with_collectives(profile.outside, outside),
    )


def _tensor_degrees(
    traced: TracedModel, max_degree: int, samples: int, precision: Precision, refused: dict[str, str]
) -> tuple[tuple[int, ...], dict[str, str]]:
    """Return the possible tensor-parallel degrees, and the layouts that all of them share."""
    if max_degree < 2 or "tensor" in refused:
        return (), {}
    try:
        derived = derive_layouts(traced, 2, samples, precision)
    except Exception as error:  # the model, run on fake tensors, may raise anything
        refused["tensor"] = f"the model could not be traced ({explain_trace_failure(error, traced.model, 'tensor')})"
        return (), {}
    if not derived.layouts:
        reasons = "; ".join(f"{block or 'the model'}: {reason}" for block, reason in derived.refusals.items())
        refused["tensor"] = f"nothing in this model can be split along it ({reasons})"
        return (), {}
    layouts = {name: str(layout) for name, layout in derived.layouts.items()}
    degrees = [1 << n for n in range(1, max_degree.bit_length()) if 1 << n <= max_degree]
    while len(degrees) > 1 and not _can_be_split(traced, degrees[-1], layouts):
        degrees.pop()
    return tuple(degrees), layouts  # a model that can be split d ways can be split d/2 ways


def _can_be_split(traced: TracedModel, degree: int, layouts: dict[str, str]) -> bool:
    """True if the layouts work for `degree` ranks; attention heads, for example, limit it."""
    parameters = dict(traced.model.named_parameters())
    for pattern, text in layouts.items():
        layout = Layout.parse(text)
        shapes = [tuple(parameter.shape) for name, parameter in parameters.items() if fnmatchcase(name, pattern)]
        if not all(layout.divides(shape, degree) for shape in shapes):
            return False
    runs = split_block_runs(traced, Plan(Mesh(tensor=degree), layouts=layouts), 1)
    return all(run is not None for run in runs.values())


def _split_runs(
    traced: TracedModel, precision: Precision, samples: int, layouts: dict[str, str]
) -> dict[bool, SplitRuns]:
    """Trace one of two tensor-parallel ranks without and with sequence parallelism; leave out what is impossible."""
    runs: dict[bool, SplitRuns] = {}
    plan = Plan(Mesh(tensor=2), precision=precision, layouts=layouts)
    outside = split_run_outside_blocks(traced, plan, samples)
    for sequence in (False, True):
        block_runs = split_block_runs(traced, replace(plan, sequence=sequence), samples)
        possible = {names: run for names, run in block_runs.items() if run is not None}
        if outside is not None and len(possible) == len(block_runs):
            runs[sequence] = outside, possible
    return runs


def _split_profile(full: Profile, runs: SplitRuns, traced: TracedModel, layouts: dict[str, str]) -> Profile:
    """Return the profile of one of two tensor-parallel ranks."""
    outside, blocks = runs
    return replace(
        full,
        blocks=tuple(_split_module(block, blocks[block.names], traced, layouts) for block in full.blocks),
        outside=_split_module(full.outside, outside, traced, layouts),
    )


def _split_module(module: ModuleProfile, run: BlockRun, traced: TracedModel, layouts: dict[str, str]) -> ModuleProfile:
    inside_blocks = tuple(f"{name}." for name in traced.blocks)
    own = {
        name: parameter
        for name, parameter in traced.model.named_parameters()
        if (name.startswith(f"{module.names[0]}.") if module.names else not name.startswith(inside_blocks))
    }
    split = [own[name] for name in own if any(fnmatchcase(name, pattern) for pattern in layouts)]
    trainable = _trainable_elements(split) // 2
    return replace(
        module,
        parameters=module.parameters - sum(parameter.numel() for parameter in split) // 2,
        trainable=module.trainable - trainable,
        parameter_bytes=module.parameter_bytes - sum(parameter.nbytes for parameter in split) // 2,
        trainable_bytes=module.trainable_bytes - trainable * 4,
        work=run.work,
        activation_bytes=run.activation_bytes,
        matmul_output_bytes=run.matmul_output_bytes,
    )


def _trainable_elements(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


def _block_chain(traced: TracedModel, profile: Profile, refused: dict[str, str]) -> BlockChain:
    if "pipeline" in refused:
        return BlockChain()
    try:
        return block_chain_of(traced, profile, traced.dataflow)
    except Exception as error:  # the model, run on fake tensors, may raise anything
        refused["pipeline"] = explain_trace_failure(error, traced.model, "pipeline")
    return BlockChain()


def _read_seconds(traced: TracedModel, samples: int) -> float:
    """Measure the seconds per sample that reading the data takes in this process."""
    begin, read = time.perf_counter(), 0
    while time.perf_counter() - begin < _READ_SECONDS:
        traced.data.micro(read, read + samples)
        read += samples
        if read >= traced.data.order.size:
            break
    return (time.perf_counter() - begin) / read
