"""One rank of benchmarks/overhead.py: several loops in one process, each in turn for one step, again and again.

`torchrun --nproc-per-node 2 benchmarks/overhead_rank.py OUT PAIRS LOOP…` with loops such as `bare-ddp-fp32`,
`onecurve-zero3-bf16`, `accelerate-ddp-fp32`, `styles-tensor-fp32`, `stages-pipeline-fp32`. Writes the seconds of all
steps to OUT.
"""

import json
import sys
import time
from pathlib import Path

import bare_pipeline
import bare_tensor
import torch
import torch.distributed as dist
from bare import LR, SIZES, Step, bare_step, build
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.utils.data import default_collate

import onecurve as oc
from onecurve.apply.process_mesh import make_mesh
from onecurve.data.training_data import open_data
from onecurve.describe.plan import Plan
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.device.cores import pin_to_cores
from onecurve.device.device import local_device
from onecurve.device.world import World
from onecurve.job.batch import MicroBatch
from onecurve.model.deferred import defer_init
from onecurve.planner.completion import PlanCompleter
from onecurve.runtime.assembly import assemble

_WARM_UP = 5
_PLANS = {
    "ddp": "replicate{ranks} mb{share}",
    "zero3": "shard{ranks} mb{share}",
    "tensor": "tensor{ranks} mb{batch}",
    "pipeline": f"pipeline{{ranks}} mb{SIZES['batch'] // bare_pipeline.ROUNDS}×{bare_pipeline.ROUNDS}",
}


def mean(output: Tensor, target: Tensor) -> Tensor:
    """The bare loop's loss: samples of one length, so a mean over tokens is one over samples."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def job(engine: str, steps: int) -> oc.Job:
    return oc.Job(
        model=bare_tensor.build if engine in ("tensor", "pipeline") else build,
        loss=mean,
        data=lambda: Pieces(steps),
        optimizer=oc.AdamW(lr=LR, weight_decay=0.1, groups={"*norm*|*.bias": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=20),
        clip=1.0,
        global_batch=SIZES["batch"],
        steps=steps,
    )


class Pieces:
    """Text of one length, made once, so that no loop waits for data."""

    def __init__(self, steps: int) -> None:
        draw = torch.Generator().manual_seed(0)
        self.text = torch.randint(0, 256, (min(steps, 20) * SIZES["batch"], SIZES["context"] + 1), generator=draw)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.text[index, :-1], self.text[index, 1:]


def plan_of(engine: str, precision: str, steps: int, world: World) -> ResolvedPlan:
    """Complete a plan before the ranks join: layouts are derived over a fake process group."""
    text = _PLANS[engine].format(ranks=world.size, share=SIZES["batch"] // world.size, batch=SIZES["batch"])
    this = job(engine, steps)
    return PlanCompleter(this, open_data(this)).resolve(Plan.parse(f"{text} {precision}"))


def onecurve_step(engine: str, resolved: ResolvedPlan, steps: int, world: World) -> Step:
    device = local_device(world.local_rank)
    this = job(engine, steps)
    plan, deferred = resolved.plan, defer_init(this.model, this.seed)
    mesh = make_mesh(plan.mesh, world.rank, device.kind)
    trainer = assemble(this, resolved, mesh, device, open_data(this), deferred).trainer

    def step(number: int, text: Tensor, target: Tensor) -> float:
        rounds = zip(text.chunk(plan.rounds), target.chunk(plan.rounds), strict=True)
        return trainer.step(number, [MicroBatch(*each, len(each[0])) for each in rounds]).loss

    return step


def accelerate_step(precision: str) -> Step:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if precision == "bf16" else "no")
    model = build()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=LR, fused=True))

    def step(_: int, text: Tensor, target: Tensor) -> float:
        optimizer.zero_grad()
        loss = mean(model(text), target)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return accelerator.reduce(loss.detach(), "mean").item()

    return step


def make(loop: str, plans: dict[str, Plan], steps: int, world: World) -> Step:
    who, engine, precision = loop.split("-")
    if who == "onecurve":
        return onecurve_step(engine, plans[loop], steps, world)
    if who == "accelerate":
        return accelerate_step(precision)
    if engine == "pipeline":
        stages = next(plan.stages for plan in plans.values() if plan.stages)
        return bare_pipeline.stages_step(stages)
    if engine == "tensor":
        mesh = DeviceMesh("cpu", torch.arange(world.size))
        return bare_tensor.styles_step(mesh) if who == "styles" else bare_tensor.local_step(mesh, who == "compiled")
    return bare_step(engine, precision, steps)


def main(out: str, pairs: int, loops: list[str]) -> None:
    world = World.from_environment()
    assert world is not None
    torch.set_num_threads(1)
    pin_to_cores(world.local_rank, world.local_size, threads=1)
    steps = pairs + _WARM_UP
    planned = [loop for loop in loops if loop.startswith("onecurve")]
    plans = {loop: plan_of(*loop.split("-")[1:], steps, world) for loop in planned}
    world.join(local_device(world.local_rank))
    stepping = {loop: make(loop, plans, steps, world) for loop in loops}
    data = Pieces(steps)
    # Ranks that hold parts of one model take the same samples.
    split = not any(axis in loop for axis in ("-tensor-", "-pipeline-") for loop in loops)
    share = SIZES["batch"] // world.size if split else SIZES["batch"]
    seconds: dict[str, list[float]] = {loop: [] for loop in loops}
    for number in range(steps):
        begin = number * SIZES["batch"] % len(data) + (world.rank * share if split else 0)
        text, target = default_collate([data[begin + i] for i in range(share)])
        for loop in loops if number % 2 == 0 else reversed(loops):
            dist.barrier()
            start = time.perf_counter()
            stepping[loop](number, text, target)
            if number >= _WARM_UP:
                seconds[loop].append(time.perf_counter() - start)
        if world.rank == 0 and number % 20 == 0:
            print(f"{number}/{steps}", file=sys.stderr, flush=True)
    if world.rank == 0:
        Path(out).write_text(json.dumps(seconds))
    world.leave()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
