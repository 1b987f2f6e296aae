"""oc.prepare: everything made ready, the loop left to the user.

with oc.prepare(job()) as run:
    for batch in run:
        report = run.step(batch)
"""

import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType

from onecurve.apply.blueprint import draw
from onecurve.apply.mesh import make_mesh
from onecurve.checkpoint.weights import refuse_unsaveable, save_weights
from onecurve.data.loader import Batch, Evaluation, Reader
from onecurve.data.order import Sample
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan, validate
from onecurve.describe.record import EvaluationRecord
from onecurve.device.cores import settle_on_cores
from onecurve.device.device import here, loader_workers, local_device
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.predict.memory import refuse_if_too_large, state_bytes
from onecurve.train.trainer import Report
from onecurve.verbs.assembly import Data, assemble, choose_plan, open_data, open_dataset, optimizer_tensors


class Run:
    """A training on this rank, made ready. Iterate for batches; `step` owns the backward pass."""

    def __init__(self, job: Job, plan: Plan | str = "auto") -> None:
        self.job = job
        self.world = World.from_environment() or World()
        self.device = local_device(self.world.local_rank)  # first: what asks the device then asks this rank's own
        cluster = here()
        self.plan = choose_plan(plan, job.global_batch, self.world.size)
        validate(self.plan, job.global_batch, cluster)
        settle_on_cores(self.world.local_rank, self.world.local_size, self.plan.threads)
        self._refuse_other_world()
        data = open_data(job)
        self.steps = data.steps
        self._open_loaders(data, loader_workers(cluster, self.world.local_size))
        self.world.join(self.device)
        blueprint = draw(job.model, job.seed)
        self.warning = blueprint.warning
        self.parameters = sum(parameter.numel() for parameter in blueprint.module.parameters())
        needed = state_bytes(blueprint.parameter_bytes, blueprint.trained_bytes, optimizer_tensors(job), self.plan)
        refuse_if_too_large(needed, self.plan, cluster)
        mesh = make_mesh(self.plan.mesh, self.world.rank, self.device.kind)
        self._assembly = assemble(job, self.plan, mesh, self.device, data, blueprint)
        refuse_unsaveable(self._assembly.part.saved)
        if self._evaluation is not None:  # a mistake in it is told before training, not after
            self._assembly.trainer.try_measures(self._assembly.part.place(self._evaluation_sample))
        self.trainer = self._assembly.trainer
        self.module = self._assembly.part.module
        self._waited = 0.0
        self._evaluation_seconds = 0.0
        self._last_end = time.perf_counter()
        self._last_step = -1

    def _open_loaders(self, data: Data, workers: int) -> None:
        """Before the rank has threads: loader processes are forked (see Batches)."""
        data_rank = self.plan.mesh.data_rank(self.world.rank)
        self._batches = data.batches(self.plan, data_rank, workers)
        self._evaluation: Evaluation | None = None
        if self.job.evaluate is not None:
            reader = Reader(open_dataset(self.job.evaluate.data, "evaluate.data"), self.job.seed, self.job.collate)
            self._evaluation = Evaluation(reader, self.plan, data_rank, workers)
            self._evaluation_sample = reader.batch([Sample(0, 0, 0)])

    def __enter__(self) -> "Run":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.world.leave()

    def __iter__(self) -> Iterator[Batch]:
        """This rank's share of each step, once."""
        while True:
            begin = time.perf_counter()
            batch = next(self._batches, None)
            self._waited = time.perf_counter() - begin
            if batch is None:
                return
            yield batch

    def step(self, batch: Batch) -> Report:
        """Forward, backward, accumulate, reduce, clip, update."""
        report = self.trainer.step(batch.step, batch.rounds)
        now = time.perf_counter()
        known = {"data": self._waited, "evaluation": self._evaluation_seconds, **report.seconds}
        report.seconds = {**known, "other": now - self._last_end - sum(known.values())}
        self._last_end = now
        self._last_step = batch.step
        self._evaluation_seconds = 0.0
        return report

    def evaluate(self) -> EvaluationRecord:
        """Loss and metrics over the job's evaluation data, each sample once; all ranks must call it."""
        if self._evaluation is None:
            raise OnecurveError("evaluate: the job has no evaluation data; give Job(evaluate=onecurve.Evaluate(…))")
        record = self.trainer.evaluate(self._last_step, self._evaluation)
        self._evaluation_seconds += record.seconds
        return record

    def evaluation_due(self, step: int) -> bool:
        every = self.job.evaluate.every if self.job.evaluate else None
        return every is not None and ((step + 1) % every == 0 or step + 1 == self.steps)

    def save(self, path: str | Path) -> None:
        """The weights as one safetensors file; all ranks must call it, rank 0 writes."""
        self._assembly.part.settle()
        save_weights(self._assembly.part.saved, Path(path), writer=self.world.rank == 0)

    def _refuse_other_world(self) -> None:
        if self.plan.mesh.size != self.world.size:
            raise OnecurveError(
                f"plan {self.plan}: it needs {self.plan.mesh.size} ranks, this world has {self.world.size}; start as "
                "many ranks as the plan has, or change the plan"
            )


def prepare(job: Job, plan: Plan | str = "auto") -> Run:
    """Make a job ready on this rank, under torchrun or alone. `plan`: "auto", its text form, a plan.toml or a Plan."""
    if not isinstance(job, Job):
        raise OnecurveError(
            f"prepare: it got {type(job).__name__}, an onecurve.Job is needed; call the function: job()"
        )
    return Run(job, plan)
