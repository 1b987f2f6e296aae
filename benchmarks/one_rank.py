"""One rank of a mesh of any size, built and traced without its peers: what it holds, and what it sends.

`python benchmarks/one_rank.py --model llama3-405b --mesh pipeline=16,shard=128,tensor=8`

The rank is made by the same code as a real one, in a pretended world (torch's fake process group), of tensors that have
a shape and no memory. One micro-batch goes through each of its stages, forward and backward.
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
from onecurve.describe.units import bytes_text
from onecurve.device.device import Device, local_cluster
from onecurve.job.batch import MicroBatch
from onecurve.job.objective import objective_of
from onecurve.measure.op_counter import OpCounter
from onecurve.model.deferred import defer_init
from onecurve.model.materialize import Materializer
from onecurve.planner.completion import PlanCompleter
from onecurve.planner.job_profile import optimizer_tensors
from onecurve.planner.pipeline_stages import dataflow_of
from onecurve.planner.tensor_layouts import split_block_runs
from onecurve.planner.traced_model import TracedModel

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import llama

MODELS = {
    "llama3-8b": {"width": 4096, "depth": 32, "heads": 32, "kv_heads": 8, "hidden": 14336, "words": 128256},
    "llama3-405b": {"width": 16384, "depth": 126, "heads": 128, "kv_heads": 8, "hidden": 53248, "words": 128256},
}


class Tokens:
    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return 1 << 40

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(self.length, dtype=torch.int64), torch.zeros(self.length, dtype=torch.int64)


@dataclass(frozen=True)
class RankTrace:
    """What one rank holds and, for one micro-batch and the step's end, sends."""

    stages: tuple[tuple[int, ...], ...]
    """The blocks of each of its stages."""
    parameters: int
    """Bytes, as are the following."""
    gradients: int
    optimizer: int
    activation_bytes: int
    """Activations that one micro-batch saves for backward."""
    in_flight: int
    """Largest number of micro-batches whose activations are in memory at the same time."""
    collectives: tuple[Collective, ...]

    @property
    def activations(self) -> int:
        return self.activation_bytes * self.in_flight


class _Unmade:
    """In place of the tape: tensors are never made."""

    def value(self, tensor: Tensor) -> Tensor:
        return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


class _PretendedPart(PipelinePart):
    """A part that holds shapes."""

    def _materialize(self, module: nn.Module) -> None:
        if isinstance(self._materializer, Materializer) and not isinstance(self._materializer._recorder, _Unmade):
            self._materializer = Materializer(_Unmade(), torch.device("meta"), self._master_dtype)  # type: ignore[arg-type]
        super()._materialize(module)

    def trace(self, micro: MicroBatch, job: oc.Job) -> tuple[int, list[Collective]]:
        """Kept bytes and collectives of one micro-batch and the step's end."""
        mode = FakeTensorMode(allow_non_fake_inputs=True)
        count, activation_bytes = OpCounter(mode), {}
        self.module.train()
        with mode:
            self._root.to_empty(device="cpu")
            fake = torch.utils._pytree.tree_map(torch.empty_like, (micro.inputs, micro.target))
            self._rounds, self._seeds = [MicroBatch(*fake, micro.samples)], [0]
            self._objective, self._scale = objective_of(job.loss), 1.0
            self._totals = torch.zeros(2, dtype=torch.float64)
            self._set_reduce_in_backward(False)
            for number in self._stage_spans:
                shapes = self._received_shapes(number, self._rounds[0])
                received = [torch.empty(x.shape, dtype=x.dtype).requires_grad_() for x in shapes]
                keep = torch.autograd.graph.saved_tensors_hooks(lambda x: _keep(x, activation_bytes), lambda x: x)
                with self._tensor_parallel_context(), count:
                    with keep:
                        output = self._root(self._train_forward, number, 0, *received)
                    outputs = [output] if isinstance(output, Tensor) else list(output)
                    count.when = "backward"
                    torch.autograd.backward(outputs, [torch.empty_like(x) for x in outputs])
                    count.when = "forward"
            count.when = "backward"
            with count:
                self._finish_gradient_reduction()
        for storage in self._parameter_storages():
            activation_bytes.pop(storage, None)
        return sum(activation_bytes.values()), count.collectives

    def _parameter_storages(self) -> set[int]:
        """Of parameters, sharded and gathered."""
        found = {_local(each).untyped_storage()._cdata for each in self._root.parameters()}
        if self._fsdp_root is not None:
            for state in fully_shard.state(self._fsdp_root)._state_ctx.all_states:
                for group in state._fsdp_param_groups:
                    for each in group.fsdp_params:
                        gathered = [*each.all_gather_outputs, each._unsharded_param]
                        found |= {_local(x).untyped_storage()._cdata for x in gathered}
        return found


def _keep(tensor: Tensor, kept: dict[int, int]) -> Tensor:
    local = _local(tensor)
    if isinstance(local, FakeTensor):
        kept[local.untyped_storage()._cdata] = local.untyped_storage().nbytes()
    return tensor


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor


def complete(plan: Plan, job: oc.Job, data: TrainingData) -> Plan:
    """Return the plan with its layouts and stages."""
    deferred = defer_init(job.model, job.seed)
    return PlanCompleter(job, data, deferred).resolve(plan).plan


def build(job: oc.Job, data: TrainingData, plan: Plan, rank: int) -> RankTrace:
    """Build and trace one rank's part. `plan` has layouts and stages."""
    dataflow = dataflow_of(TracedModel(job, data))
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=plan.mesh.size)
    try:
        mesh = make_mesh(plan.mesh, rank, "cpu")
        device = Device(torch.device("cpu"), "fake", asynchronous=False)
        deferred = defer_init(job.model, job.seed)
        part = _PretendedPart(deferred, plan, mesh, device, dataflow, deferred.trace_copy(), job.batch_norm)
        parameters = sum(local_tensor.local.nbytes for local_tensor in part.parameters)
        trainable = sum(local_tensor.local.nbytes for local_tensor in part.trainable)
        stages = tuple(tuple(range(span.begin, span.end)) for span in part._stage_spans.values())
        activation_bytes, collectives = part.trace(data.micro(0, plan.share(0)[1]), job)
    finally:
        dist.destroy_process_group()
    first = mesh.mesh.coordinates(rank)["pipeline"]
    in_flight = plan.rounds if plan.schedule == "gpipe" else min(plan.rounds, plan.mesh.pipeline - first)
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
    job: oc.Job, data: TrainingData, plan: Plan, blocks: Sequence[int], flow_blocks: Sequence[str]
) -> Counter[str]:
    """The collectives of a rank that has blocks alone, by the profile: each block's own along `tensor`, and a gather
    forward, one backward and a reduce-scatter along `shard`."""
    counts: Counter[str] = Counter()
    own = {flow_blocks[number] for number in blocks}
    if plan.mesh.tensor > 1:
        for names, run in split_block_runs(TracedModel(job, data), plan, plan.share(0)[1]).items():
            assert run is not None
            for each in run.work.collectives:
                counts[f"{each.kind} {each.when}"] += len(own & set(names))
    if plan.mesh.data > 1:
        counts["all_gather forward"] += len(own)
        counts["all_gather backward"] += len(own) if plan.sharding == "zero3" else 0
        counts["reduce_scatter backward"] += len(own)
    return counts


def counted(found: RankTrace) -> Counter[str]:
    return Counter(f"{each.kind} {each.when}" for each in found.collectives)


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
    parser.add_argument("--mesh", default="pipeline=16,shard=128,tensor=8")
    parser.add_argument("--rank", type=int, help="default: in the middle of the mesh")
    parser.add_argument("--length", type=int, default=8192, help="tokens of a sample")
    parser.add_argument("--rounds", type=int, default=16)
    parser.add_argument("--precision", choices=["fp32", "bf16"], default="bf16")
    parser.add_argument("--recompute", choices=["none", "selective", "full"], default="none")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    begin = time.perf_counter()
    mesh = Mesh(**{axis: int(degree) for axis, degree in (each.split("=") for each in chosen.mesh.split(","))})
    plan = Plan(mesh, 1, chosen.rounds, chosen.precision, recompute=chosen.recompute, sequence=mesh.tensor > 1)
    job = make_job(chosen.model, None, chosen.length, plan.global_batch)
    validate(plan, plan.global_batch, local_cluster())
    data = open_data(job)
    plan = complete(plan, job, data)
    rank = mesh.size // 2 if chosen.rank is None else chosen.rank
    found = build(job, data, plan, rank)
    say(plan, rank, found)
    seconds = time.perf_counter() - begin
    print(f"in {seconds:.0f} s")
    if chosen.json:
        print(json.dumps({**summary(found), "seconds": seconds}))


def say(plan: Plan, rank: int, found: RankTrace) -> None:
    blocks = ", ".join(f"{each[0]}..{each[-1]}" for each in found.stages)
    print(f"rank {rank} of {plan.mesh.size:,} under {plan}: blocks {blocks}")
    for name in ("parameters", "gradients", "optimizer"):
        print(f"{name:12} {bytes_text(getattr(found, name)):>10}  {getattr(found, name):,} bytes")
    per_micro_batch = f"{found.in_flight} × {found.activation_bytes:,} bytes at most"
    print(f"{'activations':12} {bytes_text(found.activations):>10}  {per_micro_batch}")
    sizes: Counter[tuple[str, int]] = Counter((f"{c.kind} {c.when}", c.size) for c in found.collectives)
    for (name, size), times in sorted(sizes.items()):
        print(f"{times:5} × {name:24} of {size:,} bytes")


def summary(found: RankTrace) -> dict[str, Any]:
    names = ("parameters", "gradients", "optimizer", "activations")
    return {**{name: getattr(found, name) for name in names}, "collectives": dict(counted(found))}


if __name__ == "__main__":
    main()
