"""One rank of benchmarks/overhead.py: runs several training loops in one process, step by step in turn.

`torchrun --nproc-per-node 2 benchmarks/overhead_rank.py OUT PAIRS LOOP…`

A loop is named by framework, engine and precision: `bare-ddp-fp32`, `onecurve-zero3-bf16`, `accelerate-ddp-fp32`,
`styles-tensor-fp32`, `stages-pipeline-fp32`. The script writes the seconds of all steps to OUT.
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
"""Number of steps that are not counted."""
_PLANS = {
    "ddp": "replicate{ranks} mb{local_batch}",
    "zero3": "shard{ranks} mb{local_batch}",
    "tensor": "tensor{ranks} mb{batch}",
    "pipeline": f"pipeline{{ranks}} mb{SIZES['batch'] // bare_pipeline.ROUNDS}×{bare_pipeline.ROUNDS}",
}


def mean_loss(output: Tensor, target: Tensor) -> Tensor:
    """The loss of the bare loop. All samples have one length, so the mean over tokens is also a mean over samples."""
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=-100)


def make_job(engine: str, steps: int) -> oc.Job:
    return oc.Job(
        model=bare_tensor.build if engine in ("tensor", "pipeline") else build,
        loss=mean_loss,
        data=lambda: TokenChunks(steps),
        optimizer=oc.AdamW(lr=LR, weight_decay=0.1, groups={"*norm*|*.bias": {"weight_decay": 0.0}}),
        schedule=oc.cosine(warmup=20),
        clip=1.0,
        global_batch=SIZES["batch"],
        steps=steps,
    )


class TokenChunks:
    """Random token sequences of one length, generated once, so that no loop waits for data."""

    def __init__(self, steps: int) -> None:
        generator = torch.Generator().manual_seed(0)
        shape = (min(steps, 20) * SIZES["batch"], SIZES["context"] + 1)
        self.text = torch.randint(0, 256, shape, generator=generator)

    def __len__(self) -> int:
        return len(self.text)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.text[index, :-1], self.text[index, 1:]


def plan_of(engine: str, precision: str, steps: int, world: World) -> ResolvedPlan:
    """Complete the plan of an engine. This must happen before the ranks join their process group, because layouts are
    derived over a fake one."""
    text = _PLANS[engine].format(ranks=world.size, local_batch=SIZES["batch"] // world.size, batch=SIZES["batch"])
    job = make_job(engine, steps)
    return PlanCompleter(job, open_data(job)).resolve(Plan.parse(f"{text} {precision}"))


def onecurve_step(engine: str, resolved: ResolvedPlan, steps: int, world: World) -> Step:
    device = local_device(world.local_rank)
    job = make_job(engine, steps)
    plan, deferred = resolved.plan, defer_init(job.model, job.seed)
    mesh = make_mesh(plan.mesh, world.rank, device.kind)
    trainer = assemble(job, resolved, mesh, device, open_data(job), deferred).trainer

    def step(number: int, text: Tensor, target: Tensor) -> float:
        rounds = zip(text.chunk(plan.rounds), target.chunk(plan.rounds), strict=True)
        micro_batches = [MicroBatch(inputs, targets, len(inputs)) for inputs, targets in rounds]
        return trainer.step(number + 1, micro_batches).loss

    return step


def accelerate_step(precision: str) -> Step:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, mixed_precision="bf16" if precision == "bf16" else "no")
    model = build()
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=LR, fused=True))

    def step(_: int, text: Tensor, target: Tensor) -> float:
        optimizer.zero_grad()
        loss = mean_loss(model(text), target)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return accelerator.reduce(loss.detach(), "mean").item()

    return step


def step_of(loop: str, plans: dict[str, ResolvedPlan], steps: int, world: World) -> Step:
    """Return the step function of a loop. `plans`: the plans of the onecurve loops, by loop."""
    framework, engine, precision = loop.split("-")
    if framework == "onecurve":
        return onecurve_step(engine, plans[loop], steps, world)
    if framework == "accelerate":
        return accelerate_step(precision)
    if engine == "pipeline":
        # The hand-written stages have as many blocks as onecurve's.
        stages = next(resolved.plan.stages for resolved in plans.values() if resolved.plan.stages)
        return bare_pipeline.stages_step(stages)
    if engine == "tensor":
        mesh = DeviceMesh("cpu", torch.arange(world.size))
        if framework == "styles":
            return bare_tensor.styles_step(mesh)
        return bare_tensor.local_step(mesh, compiled=framework == "compiled")
    return bare_step(engine, precision, steps)


def main(out: str, pairs: int, loops: list[str]) -> None:
    world = World.from_environment()
    assert world is not None
    torch.set_num_threads(1)
    pin_to_cores(world.local_rank, world.local_size, threads=1)
    steps = pairs + _WARM_UP
    onecurve_loops = [loop for loop in loops if loop.startswith("onecurve")]
    plans = {loop: plan_of(*loop.split("-")[1:], steps, world) for loop in onecurve_loops}
    world.join(local_device(world.local_rank))
    step_functions = {loop: step_of(loop, plans, steps, world) for loop in loops}
    data = TokenChunks(steps)
    # Tensor and pipeline ranks all process the same samples.
    data_parallel = not any(axis in loop for axis in ("-tensor-", "-pipeline-") for loop in loops)
    local_batch = SIZES["batch"] // world.size if data_parallel else SIZES["batch"]
    seconds: dict[str, list[float]] = {loop: [] for loop in loops}
    for number in range(steps):
        begin = number * SIZES["batch"] % len(data) + (world.rank * local_batch if data_parallel else 0)
        text, target = default_collate([data[begin + i] for i in range(local_batch)])
        for loop in loops if number % 2 == 0 else reversed(loops):
            dist.barrier()
            start = time.perf_counter()
            step_functions[loop](number, text, target)
            if number >= _WARM_UP:
                seconds[loop].append(time.perf_counter() - start)
        if world.rank == 0 and number % 20 == 0:
            print(f"{number}/{steps}", file=sys.stderr, flush=True)
    if world.rank == 0:
        Path(out).write_text(json.dumps(seconds))
    world.leave()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
