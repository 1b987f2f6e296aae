"""Resume under every plan from the checkpoint of every plan.

`torchrun --nproc-per-node N continued.py OUT SCRIPT ARGUMENT… -- PLAN…`

Every plan trains all steps and saves a checkpoint half-way. Then every plan resumes from every checkpoint, and its
steps are compared with an uninterrupted run on one device, as `onecurve check` does. If a plan resumes from its own
checkpoint, the final state must also be bitwise equal to that of the uninterrupted run. Rank 0 writes one line of JSON
per pair of plans to OUT.
"""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

from onecurve.apply.process_mesh import make_mesh
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.manifest import SavePoint
from onecurve.checkpoint.retention import Retention
from onecurve.checkpoint.saver import Saver
from onecurve.data.training_data import open_data
from onecurve.describe.plan import Plan
from onecurve.device.collectives import all_gather_text, barrier
from onecurve.device.device import local_device
from onecurve.device.world import World
from onecurve.job.script import load_job
from onecurve.model.deferred import defer_init
from onecurve.planner.completion import PlanCompleter
from onecurve.prove.comparison import LIMIT, compare_step, first_or_worst, judge
from onecurve.runtime.assembly import assemble
from onecurve.verbs.plan_checker import PlanChecker

STEPS, HALF = 4, 2


class ResumeMatrix:
    """The job, its plans, and the reference run that they are compared with."""

    def __init__(self, script: Path, arguments: list[str], plans: list[str]) -> None:
        self.world = World.from_environment()
        self.device = local_device(0)
        self.job = load_job(script, arguments)
        self.data = open_data(self.job)
        completer = PlanCompleter(self.job, self.data)
        self.resolved = [completer.resolve(Plan.parse(text)) for text in plans]
        self.plans = [resolved.plan for resolved in self.resolved]
        self.world.join(self.device)
        self.folder = Path(all_gather_text(tempfile.mkdtemp() if self.world.rank == 0 else "")[0])
        references = self.folder / "reference"
        references.mkdir(exist_ok=True)
        self.checker = PlanChecker(
            self.job, self.data, self.device, self.world, STEPS, "fp64", references, completer.changed_buffers
        )
        self.data = self.checker._data
        self.checker.train_references(self.plans)
        self.meshes = [make_mesh(plan.mesh, self.world.rank, "cpu") for plan in self.plans]
        sizes = sorted({plan.mesh.size for plan in self.plans})
        groups = {size: dist.new_group(list(range(size)), backend="gloo") for size in sizes}
        self.groups = {size: group if size > 1 else None for size, group in groups.items()}

    def store(self, number: int) -> LocalStore:
        return LocalStore(self.folder / str(number))

    def train(self, number: int) -> str:
        """Train all steps under a plan and save a checkpoint half-way. Return the digest of the final state."""
        plan, mesh = self.plans[number], self.meshes[number]
        if not mesh.member:
            return ""
        with self.checker._expected.removed():
            deferred = defer_init(self.job.model, self.job.seed)
            assembly = assemble(self.job, self.resolved[number], mesh, self.device, self.data, deferred)
            for batch in self.batches(plan, 0):
                if batch.step == HALF + 1:
                    saver = Saver(self.store(number), self.groups[plan.mesh.size], self.device, plan, {}, Retention())
                    optimizer_state = assembly.trainer.update.state()
                    saver.save(assembly.part.state_dict_tensors, optimizer_state, SavePoint(HALF))
                    saver.wait()
                assembly.trainer.step(batch.step, batch.rounds)
        return digest(assembly.part.state)

    def resume(self, number: int, source: int) -> dict | None:
        """Resume under plan `number` from the checkpoint of plan `source`.

        Return the largest difference from the reference and the digest of the final state, or None on a rank that the
        plan does not use.
        """
        plan, mesh = self.plans[number], self.meshes[number]
        if not mesh.member:
            return None
        step_differences = []
        with self.checker._expected.removed():
            deferred = defer_init(self.job.model, self.job.seed)
            assembly = assemble(self.job, self.resolved[number], mesh, self.device, self.data, deferred)
            store = self.store(source)
            checkpoint = Checkpoint(store, store.names()[-1])
            assembly.trainer.update.load_state(
                checkpoint.load(assembly.part.state_dict_tensors, plan.mesh, self.world.rank)
            )
            assembly.part.drop_gathered()
            lr = max(assembly.trainer.update.base_rates)
            references = self.checker.references
            variant = references.variant(plan)
            folder, limits = references.folder(variant), references.limits(variant)
            for batch in self.batches(plan, checkpoint.root.point.step):
                loss = assembly.trainer.step(batch.step, batch.rounds).loss
                assembly.part.sync_buffers()
                done = batch.step - 1
                differences = compare_step(assembly.part.state, assembly.part.trainable, done, loss, lr, folder)
                step_differences.append(first_or_worst(judge(differences, limits)))
        worst = first_or_worst(step_differences)
        return {"size": worst.size, "tensor": worst.tensor, "step": worst.step, "digest": digest(assembly.part.state)}

    def batches(self, plan: Plan, step: int):
        """Return this rank's batches after `step` steps to the last."""
        batches = self.data.batches(plan, plan.mesh.data_rank(self.world.rank), workers=0)
        batches.start(step, step * self.job.global_batch, self.data.steps)
        return (batch for batch in batches if batch.step <= STEPS)


def digest(tensors) -> str:
    content = b"".join(tensor.local.detach().contiguous().numpy().tobytes() for tensor in tensors)
    return hashlib.sha256(content).hexdigest()


def main(out: str, script: str, *rest: str) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    separator = rest.index("--")
    matrix = ResumeMatrix(Path(script), list(rest[:separator]), list(rest[separator + 1 :]))
    digests = [matrix.train(number) for number in range(len(matrix.plans))]
    barrier()
    for source in range(len(matrix.plans)):
        for number, plan in enumerate(matrix.plans):
            result = matrix.resume(number, source)
            results = [json.loads(text) for text in all_gather_text(json.dumps(result)) if text != "null"]
            same = all(all_gather_text("" if result and result["digest"] != digests[number] else "same"))
            size = max(rank_result["size"] for rank_result in results)
            line = {
                "from": str(matrix.plans[source]),
                "into": str(plan),
                "size": size,
                "holds": size <= LIMIT,
                "same": same,
            }
            if matrix.world.rank == 0:
                with Path(out).open("a") as file:
                    file.write(json.dumps(line) + "\n")
    matrix.world.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
