"""A worker: computes steps of a job alone, with the weights that the servers have when it begins each."""

from collections.abc import Mapping

import torch

from onecurve.apply.process_mesh import make_mesh
from onecurve.data.training_data import TrainingData
from onecurve.describe.changed_buffers import buffers_text
from onecurve.describe.errors import OnecurveError
from onecurve.describe.job_facts import JobFacts
from onecurve.device.device import Device
from onecurve.job.job import Job
from onecurve.job.row_point import StepVerdict
from onecurve.model.deferred import DeferredModel
from onecurve.params.dense_rows import digest
from onecurve.params.worker_rows import WorkerRows
from onecurve.runtime.assembly import TrialResults, assemble
from onecurve.runtime.row_tables import RowAccess
from onecurve.train.state import TrainState
from onecurve.train.step_report import StepReport
from onecurve.train.update import SentUpdate


class StepWorker:
    """Computes steps, and pushes their gradients to the servers."""

    def __init__(
        self,
        job: Job,
        data: TrainingData,
        deferred: DeferredModel,
        facts: JobFacts,
        device: Device,
        access: RowAccess,
        start: TrainState,
        steps: int,
        unsent: str,
    ) -> None:
        """`facts`: of the run. `access`: makes `WorkerRows`. `start`: where the run began. `steps`: of all of it.
        `unsent`: digest of the tensors that the run does not send."""
        self._data, self._plan, self._start = data, facts.resolved.plan, start
        mesh = make_mesh(self._plan.mesh, 0, device.kind)
        trials = TrialResults(facts.loss_note or "", facts.loss_form, facts.leaves_unused)
        assembly = assemble(job, facts.resolved, mesh, device, data, deferred, None, trials, access, SentUpdate)
        assert assembly.tables is not None
        (rows,) = (holder for holder in assembly.tables.holders if isinstance(holder, WorkerRows))
        assert rows.dense is not None
        self._part, self._trainer, self.rows, self._dense = assembly.part, assembly.trainer, rows, rows.dense
        self._trainer.resume(start, steps)
        rows.dense_gradients = lambda: {tensor.name: tensor.local.grad for tensor in assembly.part.trainable}
        self._tensors = {tensor.name: tensor.local for tensor in assembly.part.state}
        self._is_first = True
        names = self._dense.unsent
        if digest({name: self._tensors[name] for name in names}) != unsent:
            raise OnecurveError(
                f"model: {buffers_text(names)} have other values than the run's, and cannot be sent to workers because "
                "they are no floating-point numbers, or have more digits than the parameters; with mode='async' make "
                "them in the model's constructor"
            )

    def compute(self, step: int, known: int, verdicts: Mapping[int, StepVerdict]) -> StepReport:
        """Compute a step with weights that have all row steps up to `known`. `verdicts`: on the latest ones."""
        self.rows.follow(known, verdicts)
        self._dense.write(self.rows.pull_dense(constant=self._is_first), self._tensors)
        buffers = {name: tensor.clone() for name, tensor in self._part.module.named_buffers()} if self._is_first else {}
        begin = self._start.samples_after(step - 1, self._plan.global_batch)
        rounds = [self._data.round(self._plan, begin, number) for number in range(self._plan.rounds)]
        report = self._trainer.step(step, rounds)
        report.memory = self._part.device.peak_memory()
        if self._is_first:
            self._refuse_changed(buffers)
        self._is_first = False
        return report

    def _refuse_changed(self, before: Mapping[str, torch.Tensor]) -> None:
        changed = [
            name
            for name, tensor in self._part.module.named_buffers()
            if name not in before or not torch.allclose(tensor, before[name], rtol=0, atol=0, equal_nan=True)
        ]
        if changed:
            raise OnecurveError(
                f"model: forward changes {buffers_text(changed)}, of which every worker would have other values; with "
                "mode='async' use layers without running statistics, such as LayerNorm or GroupNorm"
            )
