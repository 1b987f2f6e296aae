"""From each plan into each other: `torchrun --nproc-per-node N continued.py OUT SCRIPT ARGUMENT… -- PLAN…`.

Every plan trains half of the steps and saves; every plan then goes on from every checkpoint, and what it computes is
held against one device that was never interrupted, as `onecurve check` does; where the plan is the same it is compared
to the last bit as well. The first rank writes one line of JSON per pair to OUT.
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
from onecurve.prove.comparison import LIMIT, compare_step, first_or_worst
from onecurve.runtime.assembly import assemble
from onecurve.verbs.plan_checker import PlanChecker

STEPS, HALF = 4, 2


class Continued:
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
        self.checker = PlanChecker(
            self.job, self.data, self.device, self.world, STEPS, "fp64", self.folder / "reference"
        )
        self.checker._folder.mkdir(exist_ok=True)
        self.checker.train_references(self.plans)
        self.meshes = [make_mesh(plan.mesh, self.world.rank, "cpu") for plan in self.plans]
        sizes = sorted({plan.mesh.size for plan in self.plans})
        made = {size: dist.new_group(list(range(size)), backend="gloo") for size in sizes}
        self.groups = {size: group if size > 1 else None for size, group in made.items()}

    def store(self, number: int) -> LocalStore:
        return LocalStore(self.folder / str(number))

    def save(self, number: int) -> str:
        """Train all steps, saving in between; what came of it, to the last bit."""
        plan, mesh = self.plans[number], self.meshes[number]
        if not mesh.member:
            return ""
        with self.checker._without_expected_differences():
            deferred = defer_init(self.job.model, self.job.seed)
            assembly = assemble(self.job, self.resolved[number], mesh, self.device, self.data, deferred)
            for batch in self.batches(plan, 0):
                if batch.step == HALF:
                    saver = Saver(self.store(number), self.groups[plan.mesh.size], self.device, plan, {}, Retention())
                    kept = assembly.trainer.update.state()
                    saver.save(assembly.part.state_dict_tensors, kept, SavePoint(HALF))
                    saver.wait()
                assembly.trainer.step(batch.step, batch.rounds)
        return digest(assembly.part.state)

    def go_on(self, number: int, source: int) -> dict | None:
        plan, mesh = self.plans[number], self.meshes[number]
        if not mesh.member:
            return None
        found = []
        with self.checker._without_expected_differences():
            deferred = defer_init(self.job.model, self.job.seed)
            assembly = assemble(self.job, self.resolved[number], mesh, self.device, self.data, deferred)
            store = self.store(source)
            checkpoint = Checkpoint(store, store.names()[-1])
            assembly.trainer.update.load_state(
                checkpoint.load(assembly.part.state_dict_tensors, plan.mesh, self.world.rank)
            )
            assembly.part.drop_gathered()
            lr = max(assembly.trainer.update.base_rates)
            for batch in self.batches(plan, checkpoint.root.point.step):
                loss = assembly.trainer.step(batch.step, batch.rounds).loss
                assembly.part.sync_buffers()
                place = self.checker._reference_folder(self.checker._variant(plan))
                differences = compare_step(assembly.part.state, assembly.part.trainable, batch.step, loss, lr, place)
                found.append(first_or_worst(differences))
        worst = first_or_worst(found)
        return {"size": worst.size, "tensor": worst.tensor, "step": worst.step, "digest": digest(assembly.part.state)}

    def batches(self, plan: Plan, step: int):
        batches = self.data.batches(plan, plan.mesh.data_rank(self.world.rank), workers=0)
        batches.start(step, step * self.job.global_batch)
        return (batch for batch in batches if batch.step < STEPS)


def digest(local_tensors) -> str:
    content = b"".join(local_tensor.local.detach().contiguous().numpy().tobytes() for local_tensor in local_tensors)
    return hashlib.sha256(content).hexdigest()


def main(out: str, script: str, *rest: str) -> None:
    torch.use_deterministic_algorithms(True, warn_only=True)
    split = rest.index("--")
    work = Continued(Path(script), list(rest[:split]), list(rest[split + 1 :]))
    digests = [work.save(number) for number in range(len(work.plans))]
    barrier()
    for source in range(len(work.plans)):
        for number, plan in enumerate(work.plans):
            found = work.go_on(number, source)
            texts = [json.loads(text) for text in all_gather_text(json.dumps(found)) if text != "null"]
            same = all(all_gather_text("" if found and found["digest"] != digests[number] else "same"))
            size = max(each["size"] for each in texts)
            line = {
                "from": str(work.plans[source]),
                "into": str(plan),
                "size": size,
                "holds": size <= LIMIT,
                "same": same,
            }
            if work.world.rank == 0:
                with Path(out).open("a") as file:
                    file.write(json.dumps(line) + "\n")
    work.world.leave()


if __name__ == "__main__":
    main(*sys.argv[1:])
