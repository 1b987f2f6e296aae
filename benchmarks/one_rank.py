"""Build and trace one rank of a mesh of any size, without its peers.

`python benchmarks/one_rank.py --model llama3-405b --mesh pipeline=16,shard=128,tensor=8`

The rank is built by the same code as a real one, but in PyTorch's fake process group and from fake tensors, which have
a shape and no memory. One micro-batch runs forward and backward through each of the rank's stages. The script prints
the bytes of parameters, gradients, optimizer state and activations that the rank holds, and its collectives.

It also prints what one rank does to create its process groups when a run starts, in worlds of 1,024 to 131,072 ranks
(see start_up.py).
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing._internal.distributed.fake_pg import FakeStore

import onecurve as oc
from onecurve.apply.pipeline import PipelinePart
from onecurve.apply.process_mesh import make_mesh
from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.describe.profile import Collective
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.units import bytes_text
from onecurve.device.device import Device, local_cluster
from onecurve.job.batch import MicroBatch
from onecurve.job.objective import objective_of
from onecurve.measure.op_counter import OpCounter
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.planner.completion import PlanCompleter
from onecurve.planner.job_profile import optimizer_tensors
from onecurve.planner.tensor_layouts import split_block_runs
from onecurve.planner.traced_model import TracedModel

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import llama
import start_up

MODELS = {
    "llama3-8b": {"width": 4096, "depth": 32, "heads": 32, "kv_heads": 8, "hidden": 14336, "vocab_size": 128256},
    "llama3-405b": {"width": 16384, "depth": 126, "heads": 128, "kv_heads": 8, "hidden": 53248, "vocab_size": 128256},
}


class Tokens:
    """A dataset of zeros: only the shapes matter."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.length, dtype=torch.int64), torch.zeros(self.length, dtype=torch.int64)


@dataclass(frozen=True)
class RankTrace:
    """The memory and the collectives of one rank."""

    stages: tuple[tuple[int, ...], ...]
    """Indices of the blocks in each of the rank's stages."""
    parameters: int
    """Bytes of parameters."""
    gradients: int
    """Bytes of gradients."""
    optimizer: int
    """Bytes of optimizer state."""
    activation_bytes: int
    """Bytes of activations that one micro-batch saves for backward."""
    in_flight: int
    """Largest number of micro-batches whose activations are in memory at the same time."""
    collectives: tuple[Collective, ...]
    """Collectives of one micro-batch and of the gradient reduction at the end of the step."""

    @property
    def activations(self) -> int:
        """Largest number of bytes of activations at one time."""
        return self.activation_bytes * self.in_flight


class _MetaRecorder:
    """Stands in for an InitRecorder: creates tensors on the meta device and does not replay initialization."""

    def value(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


class _FakePart(PipelinePart):
    """A pipeline part whose tensors have a shape and no memory."""

    def _materialize(self, module: nn.Module) -> None:
        if isinstance(self._materializer, Materializer) and not isinstance(self._materializer._recorder, _MetaRecorder):
            self._materializer = Materializer(_MetaRecorder(), torch.device("meta"), self._master_dtype)  # type: ignore[arg-type]
        super()._materialize(module)

    def trace(self, micro: MicroBatch, job: oc.Job) -> tuple[int, list[Collective]]:
        """Run one micro-batch and the gradient reduction on fake tensors.

        Return the bytes of activations saved for backward, and the collectives.
        """
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        counter = OpCounter(mode)
        storage_bytes: dict[int, int] = {}
        self.module.train()
        with mode:
            self._root.to_empty(device="cpu")
            inputs, target = torch.utils._pytree.tree_map(torch.empty_like, (micro.inputs, micro.target))
            self._rounds, self._seeds = [MicroBatch(inputs, target, micro.samples)], [0]
            self._objective, self._scale = objective_of(job.loss), 1.0
            self._totals = torch.zeros(2, dtype=torch.float64)
            self._set_reduce_in_backward(False)
            for stage in self._stage_spans:
                shapes = self._received_shapes(stage, self._rounds[0])
                received = [torch.empty(x.shape, dtype=x.dtype).requires_grad_() for x in shapes]
                record_saved = torch.autograd.graph.saved_tensors_hooks(
                    lambda x: _record_storage(x, storage_bytes), lambda x: x
                )
                with self._tensor_parallel_context(), counter:
                    with record_saved:
                        output = self._root(self._train_forward, stage, 0, *received)
                    outputs = [output] if isinstance(output, Tensor) else list(output)
                    counter.when = "backward"
                    torch.autograd.backward(outputs, [torch.empty_like(x) for x in outputs])
                    counter.when = "forward"
            counter.when = "backward"
            with counter:
                self._finish_gradient_reduction()
        for storage in self._parameter_storages():
            storage_bytes.pop(storage, None)
        return sum(storage_bytes.values()), counter.collectives

    def _parameter_storages(self) -> set[int]:
        """Return the ids of the storages of all parameters, both sharded and all-gathered."""
        storages = {_local(parameter).untyped_storage()._cdata for parameter in self._root.parameters()}
        if self._fsdp_root is not None:
            for state in fully_shard.state(self._fsdp_root)._state_ctx.all_states:
                for group in state._fsdp_param_groups:
                    for parameter in group.fsdp_params:
                        gathered = [*parameter.all_gather_outputs, parameter._unsharded_param]
                        storages |= {_local(x).untyped_storage()._cdata for x in gathered}
        return storages


def _record_storage(tensor: Tensor, storage_bytes: dict[int, int]) -> Tensor:
    """Add the bytes of the tensor's storage to `storage_bytes`, keyed by the storage's id. Return the tensor."""
    local = _local(tensor)
    if isinstance(local, FakeTensor):
        storage_bytes[local.untyped_storage()._cdata] = local.untyped_storage().nbytes()
    return tensor


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def complete(plan: Plan, job: oc.Job, data: TrainingData) -> Plan:
    """Return the plan with its tensor layouts and pipeline stages filled in."""
    deferred = defer_init(job.model, job.seed)
    return PlanCompleter(job, data, deferred).resolve(plan).plan


def build(job: oc.Job, data: TrainingData, plan: Plan, rank: int) -> RankTrace:
    """Build and trace the part of one rank. `plan` must have its layouts and stages (see `complete`)."""
    dataflow = TracedModel(job, data).dataflow
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=plan.mesh.size)
    try:
        mesh = make_mesh(plan.mesh, rank, "cpu")
        device = Device(torch.device("cpu"), "fake", asynchronous=False)
        deferred = defer_init(job.model, job.seed)
        resolved = ResolvedPlan(plan, dataflow=dataflow)
        part = _FakePart(deferred, resolved, mesh, device, deferred.trace_copy(), job.batch_norm)
        parameters = sum(parameter.local.nbytes for parameter in part.parameters)
        trainable = sum(parameter.local.nbytes for parameter in part.trainable)
        stages = tuple(tuple(range(span.begin, span.end)) for span in part._stage_spans.values())
        activation_bytes, collectives = part.trace(data.micro(0, plan.share(0)[1]), job)
    finally:
        dist.destroy_process_group()
    pipeline_rank = mesh.mesh.coordinates(rank)["pipeline"]
    in_flight = plan.rounds if plan.schedule == "gpipe" else min(plan.rounds, plan.mesh.pipeline - pipeline_rank)
    return RankTrace(
        stages=stages,
        parameters=parameters,
        gradients=trainable,
        optimizer=optimizer_tensors(job) * trainable,
        activation_bytes=activation_bytes,
        in_flight=in_flight,
        collectives=tuple(collectives),
    )


def expected(
    job: oc.Job, data: TrainingData, plan: Plan, blocks: Sequence[int], block_names: Sequence[str]
) -> Counter[str]:
    """Return the number of collectives that a rank with only these blocks should run for one micro-batch.

    Along `tensor` they are those of each block's profile. Along `shard` each block has one all-gather in forward, one
    in backward (zero3 only) and one reduce-scatter.
    """
    counts: Counter[str] = Counter()
    own_names = {block_names[index] for index in blocks}
    if plan.mesh.tensor > 1:
        for names, run in split_block_runs(TracedModel(job, data), plan, plan.share(0)[1]).items():
            assert run is not None
            for collective in run.work.collectives:
                counts[f"{collective.kind} {collective.when}"] += len(own_names & set(names))
    if plan.mesh.data > 1:
        counts["all_gather forward"] += len(own_names)
        counts["all_gather backward"] += len(own_names) if plan.sharding == "zero3" else 0
        counts["reduce_scatter backward"] += len(own_names)
    return counts


def counted(trace: RankTrace) -> Counter[str]:
    """Return the number of collectives in a trace, keyed by kind and direction ("all_gather forward")."""
    return Counter(f"{collective.kind} {collective.when}" for collective in trace.collectives)


def make_job(model: str, depth: int | None, length: int, batch: int) -> oc.Job:
    sizes = MODELS[model] | ({"depth": depth} if depth else {})
    return oc.Job(
        model=lambda: llama.Llama(**sizes),
        loss=oc.loss.next_token,
        data=lambda: Tokens(length),
        optimizer=oc.AdamW(),
        global_batch=batch,
        steps=1,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=MODELS, default="llama3-405b")
    parser.add_argument("--mesh", default="pipeline=16,shard=128,tensor=8", help="degree of each mesh axis")
    parser.add_argument("--rank", type=int, help="rank to build (default: the middle of the mesh)")
    parser.add_argument("--length", type=int, default=8192, help="tokens per sample")
    parser.add_argument("--rounds", type=int, default=16, help="gradient-accumulation rounds per step")
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--recompute", choices=["none", "selective", "full"], default="none")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    start_ups = [start_up.measure(mesh) for mesh in start_up.MESHES]  # before the trace, which leaves memory to reuse
    begin = time.perf_counter()
    mesh = Mesh(**{axis: int(degree) for axis, degree in (item.split("=") for item in arguments.mesh.split(","))})
    plan = Plan(
        mesh=mesh,
        micro_batch=1,
        rounds=arguments.rounds,
        precision=arguments.precision,
        recompute=arguments.recompute,
        sequence=mesh.tensor > 1,
    )
    job = make_job(arguments.model, None, arguments.length, plan.global_batch)
    validate(plan, plan.global_batch, local_cluster())
    data = open_data(job)
    plan = complete(plan, job, data)
    rank = mesh.size // 2 if arguments.rank is None else arguments.rank
    trace = build(job, data, plan, rank)
    print_trace(plan, rank, trace)
    seconds = time.perf_counter() - begin
    print(f"in {seconds:.0f} s")
    start_up.print_start_ups(start_ups)
    if arguments.json:
        print(json.dumps({**summary(trace), "seconds": seconds, "start_up": start_up.summary(start_ups)}))


def print_trace(plan: Plan, rank: int, trace: RankTrace) -> None:
    blocks = ", ".join(f"{stage[0]}..{stage[-1]}" for stage in trace.stages)
    print(f"rank {rank} of {plan.mesh.size:,} under {plan}: blocks {blocks}")
    for name in ("parameters", "gradients", "optimizer"):
        print(f"{name:12} {bytes_text(getattr(trace, name)):>10}  {getattr(trace, name):,} bytes")
    per_micro_batch = f"at most {trace.in_flight} × {trace.activation_bytes:,} bytes"
    print(f"{'activations':12} {bytes_text(trace.activations):>10}  {per_micro_batch}")
    sizes: Counter[tuple[str, int]] = Counter((f"{c.kind} {c.when}", c.size) for c in trace.collectives)
    for (name, size), count in sorted(sizes.items()):
        print(f"{count:5} × {name:24} of {size:,} bytes")


def summary(trace: RankTrace) -> dict[str, Any]:
    names = ("parameters", "gradients", "optimizer", "activations")
    return {**{name: getattr(trace, name) for name in names}, "collectives": dict(counted(trace))}


if __name__ == "__main__":
    main()
