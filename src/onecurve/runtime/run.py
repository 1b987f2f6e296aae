"""A training on this rank: the object that a loop iterates over and steps."""

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Self

from torch import Tensor

from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.saver import SaveEvent
from onecurve.checkpoint.snapshot import OptimizerState
from onecurve.checkpoint.weights import save_weights
from onecurve.data.loader import Batch
from onecurve.describe.change import JobChange
from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import EvaluationRecord
from onecurve.describe.seed import mix
from onecurve.device.collectives import barrier
from onecurve.job.batch import LoadTime
from onecurve.job.cadence import TrainingPoint, is_reached
from onecurve.job.weighted import Weighted
from onecurve.params.row_client import RowsLostError
from onecurve.runtime.checkpoints import ListTensors, train_state_of
from onecurve.runtime.memory_account import memory_components
from onecurve.runtime.model_tensors import saved_tensors, write_weights_of, written_tensors
from onecurve.runtime.run_components import RunComponents
from onecurve.runtime.saved_rows import SavedRows
from onecurve.runtime.step_account import StepAccount
from onecurve.train.manual_trainer import ManualTrainer
from onecurve.train.state import TrainState
from onecurve.train.step_report import StepReport
from onecurve.train.trainer import Trainer

_NEVER_CALLED = "run.checkpoint() was never called, so no checkpoint was made before the end; call it after every step"


class Run:
    """A training on this rank. Iterate over it for batches; call `step` with each, then `checkpoint`.

    If it was prepared with `backward="mine"`, call `backward` and `update` instead of `step`.
    """

    def __init__(self, components: RunComponents) -> None:
        self.components = components
        """What the run is built from."""
        self.job, self.plan, self.world, self.device = (
            components.job,
            components.plan,
            components.world,
            components.device,
        )
        self.model = components.part.module
        self.steps, self.parameters = components.steps, components.parameters
        self.resumed, self.changed, self.warning = components.resumed, components.changed, components.warning
        self.best = components.best
        """Tracks the best evaluation so far; None if the job has no evaluation."""
        self._part, self._checkpoints = components.part, components.checkpoints
        self._steps_done = components.state.step
        self._finished_step = -1
        self._newest: StepReport | None = None
        self._readable: StepReport | None = None
        self._best_improved = self._checkpoint_called = False
        if self._checkpoints is not None:
            self._checkpoints.begin(self.point(self._steps_done))
        self.account = StepAccount()
        """The seconds since the last step."""
        self.begin = time.time()
        """When the run was ready for its first step, in seconds since the epoch."""

    # The loop

    def __iter__(self) -> Iterator[Batch]:
        """Yield this rank's share of each step. With `backward="mine"` it is already on the device, and the random
        generators are seeded by (seed, step, rank)."""
        batches = iter(self.components.loaders.training)
        trainer = self.components.trainer
        while not self._is_stopped:
            if self._readable is not None and isinstance(trainer, Trainer):
                self.components.straggler.add(self._readable.outcome)
            with self.account.measure("data"):
                batch = next(batches, None)
            if batch is None:
                return
            if isinstance(trainer, ManualTrainer):
                trainer.begin_step(batch.step)
                self.device.seed(mix(self.job.seed, batch.step - 1, self.components.data_rank, 3))
                batch = Batch(batch.step, [self._part.place(micro) for micro in batch.rounds])
            yield batch

    def step(self, batch: Batch) -> StepReport:
        """Run one step: forward, backward, gradient accumulation, reduction, clipping, update."""
        self._begin_audit(batch)
        try:
            report = self._trainer.step(batch.step, batch.rounds, batch.upcoming)
        except RowsLostError as error:
            raise OnecurveError(f"{error}; {self.how_to_go_on()}") from None
        self._note(report, late=self.reports_late)
        self.account.complete(report, "step" if self.device.asynchronous else "other")
        report.memory = self.device.peak_memory()
        report.skipped_samples = sum(micro.skipped for micro in batch.rounds)
        report.saving_cpu_seconds = self._checkpoints.take_cpu_seconds() if self._checkpoints is not None else 0.0
        report.load = sum((micro.load for micro in batch.rounds), LoadTime())
        report.loader_processes = self.components.loaders.training.processes
        return report

    def _begin_audit(self, batch: Batch) -> None:
        """Compute another rank's share of the step, if the step is to be audited."""
        audit = self._trainer.audit
        if audit is None or not audit.is_due(batch.step, self.first_step + 1):
            return
        self.device.wait()  # for the step before, which is no part of the audit
        with self.account.measure("audit"):
            self._trainer.begin_audit(batch.step, batch.rounds, batch.of_partner)
            self.device.wait()

    def count(self, report: StepReport) -> None:
        """Count a step that a worker has computed."""
        self._note(report, late=False)
        self.account.complete(report, "workers")

    def backward(self, weighted: Weighted | Tensor) -> None:
        """Add the gradients of a loss: `Weighted(sum, count)`, or one value per sample. For `backward="mine"`.

        All ranks must call it equally often. The first call after an update clears the gradients that are left over.
        """
        self._manual_trainer.backward(weighted)

    def update(self, name: str = "") -> StepReport:
        """Sum the gradients of one optimizer over the ranks, divide by the count of all losses since the last update,
        clip, update. For `backward="mine"`; all ranks must call it. The report's loss is the mean over all ranks."""
        trainer = self._manual_trainer
        report = trainer.update(name)
        self._note(report, late=trainer.updates[name].skips_on_device)
        return report

    def test(self) -> EvaluationRecord | None:
        """Return loss and metrics over the job's test data, each sample once, or None if it has none. All ranks must
        call it."""
        batches = self.components.loaders.test
        if batches is None:
            return None
        return dataclasses.replace(self._trainer.evaluate(self._steps_done, batches), kind="test")

    def evaluate(self) -> EvaluationRecord:
        """Return loss and metrics over the job's evaluation data, each sample once. All ranks must call it."""
        evaluation = self.components.loaders.evaluation
        if evaluation is None or self.best is None:
            raise OnecurveError("evaluate: the job has no evaluation data; give Job(evaluate=onecurve.Evaluate(…))")
        with self.account.measure("evaluation"):
            record = self._trainer.evaluate(self._steps_done, evaluation)
        if self.best.add(record) and self.job.save is not None and self.job.save.best:
            self._best_improved = True
        return record

    def evaluation_due(self, step: int) -> bool:
        """True if the model is to be evaluated after this step (counted from 1)."""
        if self.job.evaluate is None:
            return False
        return is_reached(self.job.evaluate.every, self.point(step - 1), self.point(step)) or step == self.steps

    def point(self, step: int) -> TrainingPoint:
        """How far the training is after `step` steps."""
        samples = self.components.state.samples_after(step, self.job.global_batch) - self.job.warmup_samples
        epoch_samples = self.components.epoch_samples
        return TrainingPoint(step, max(0, samples) // epoch_samples if epoch_samples else 0)

    # Checkpoints

    def checkpoint(self) -> None:
        """Save a checkpoint in the background if one is due. Call it on all ranks after every step and evaluation.

        One is due as `Job.save` says, and after an evaluation that is the best so far. Without a folder (`out`) this
        does nothing.
        """
        self._checkpoint_called = True
        if self._checkpoints is None:
            return
        # On accelerators the readable report is that of the step before, whose request may have been served already.
        report = self._readable
        asked = report is not None and report.step > self._checkpoints.begun_step and report.outcome.save
        regroups = report is not None and report.outcome.regroup
        # Asked also if it is saved anyway: it counts the steps.
        is_due = self._checkpoints.due(self.point(self._steps_done))
        saves = asked or self._best_improved or is_due
        snapshots = report is not None and report.outcome.snapshot
        if saves or (regroups and not self._checkpoints.takes_snapshots):
            self._save_checkpoint()
        elif snapshots:
            self._checkpoints.snapshot_taken(self._copy_state(self._checkpoints.snapshot))
        if regroups and (snapshots or not self._checkpoints.takes_snapshots):
            self._checkpoints.wait()
            self._pass_on_events()
            barrier()  # until all ranks have kept their part
            self.components.hand_over()
        self._pass_on_events()

    def finish(self) -> None:
        """Save where the training stands, and wait until that is done. Leaving the `with` block does this too."""
        if self._checkpoints is None:
            return
        self._checkpoints.wait()
        if self._steps_done > max(0, self._checkpoints.saved_step) and self._finished_step != self._steps_done:
            self._save_checkpoint()
            self._save_checkpoint()  # does nothing, unless the first attempt failed
            self._finished_step = self._steps_done
        self._checkpoints.wait()
        self._pass_on_events()

    def save(self, path: str | Path, on_progress: Callable[[int, int], None] = lambda _, __: None) -> None:
        """Write the weights, or their averages if there are any, as one safetensors file. All ranks must call it; rank
        0 writes. `on_progress`: told there the bytes that were written, and those to be written in all."""
        self._part.sync_buffers()
        writer = self.world.rank == 0
        with self._averaged():
            save_weights(written_tensors(self._part), Path(path), writer=writer, on_progress=on_progress)

    def save_best(self, path: str | Path) -> None:
        """Write the weights of the best evaluation so far as one safetensors file. All ranks must call it.

        They are read from the checkpoint that was saved after it. Raises an OnecurveError if there is none.
        """
        best = self.best.best if self.best is not None else None
        if best is None:
            raise OnecurveError("save_best: no evaluation had a finite value; call run.evaluate() first")
        if best.step == self._steps_done:
            self.save(path)
        elif self.world.rank == 0:
            checkpoint = self._checkpoints.of_step(best.step) if self._checkpoints is not None else None
            if checkpoint is None:
                raise OnecurveError(
                    f"{path}: the weights of the best evaluation, at step {best.step}, were not kept, because no "
                    "checkpoint was saved after it; set save=onecurve.Save(best=True) in the job"
                )
            write_weights_of(checkpoint, self._part, Path(path))

    def load_model(self, checkpoint: Checkpoint) -> None:
        """Replace the weights by those of a checkpoint, or by their averages if it has any, to use the model without
        training it."""
        states = checkpoint.load(saved_tensors(self._part), self.plan.mesh, self.world.rank)
        if isinstance(self.components.trainer, Trainer) and self.components.trainer.averages is not None:
            self.components.trainer.update.load_state(states)
        state = train_state_of(checkpoint)
        self.components.rows.load(checkpoint, can_be_base=True, step=state.step, updates=state.updates)
        self._part.drop_gathered()
        self._trainer.keep_averages()

    # What a loop may ask

    @property
    def start_seconds(self) -> Mapping[str, float]:
        """What it took to build the run, by cause."""
        return self.components.start_seconds

    def memory(self) -> tuple[dict[str, int], int]:
        """The bytes that this rank uses, by component, and the most that it has used so far, which is their sum."""
        peak = self.device.peak_memory()
        return memory_components(self._part, self.components.trainer, self.components.process_bytes, peak), peak

    @property
    def first_step(self) -> int:
        """Steps that were done before this run was started or resumed."""
        return self.components.state.step

    @property
    def changes(self) -> tuple[JobChange, ...]:
        """Fields of the job that were changed since the start of the training, oldest first."""
        return self.components.state.changes

    @property
    def last_loss(self) -> float:
        """Loss of the step before the first one of this run; NaN if there is none."""
        loss = self.components.state.loss
        return math.nan if loss is None else loss

    @property
    def reports_late(self) -> bool:
        """True if a step's outcome should be read after the next step was queued, so that the host never waits."""
        return self._trainer.update.skips_on_device and not self.job.async_workers

    @property
    def out_of_patience(self) -> bool:
        """True if early stopping should end the run."""
        return self.best is not None and self.best.out_of_patience

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.finish()
                if self._is_stopped and self._steps_done < self.steps:
                    self.components.on_interruption()
                several_steps = self._steps_done > self.first_step + 1
                if self._checkpoints is not None and several_steps and not self._checkpoint_called:
                    self.components.on_event(SaveEvent("warning", _NEVER_CALLED))
        finally:
            if self.components.tables is not None:
                self.components.tables.close()
            if self._checkpoints is not None:
                self._checkpoints.close()
            if kind is None:
                self.world.leave()
            if self.components.lock is not None:
                self.components.lock.release()

    # Internals

    @property
    def _trainer(self) -> Trainer:
        if not isinstance(self.components.trainer, Trainer):
            raise OnecurveError(
                "this run was prepared with backward='mine': call run.backward(loss) and run.update(name) instead"
            )
        return self.components.trainer

    @property
    def _manual_trainer(self) -> ManualTrainer:
        if not isinstance(self.components.trainer, ManualTrainer):
            raise OnecurveError(
                "this run calls backward by itself: call run.step(batch), or prepare it with backward='mine'"
            )
        return self.components.trainer

    def _averaged(self) -> AbstractContextManager[None]:
        trainer = self.components.trainer
        return trainer.averaged() if isinstance(trainer, Trainer) else nullcontext()

    @property
    def _is_stopped(self) -> bool:
        """True if a rank was asked to stop."""
        return self._readable is not None and self._readable.outcome.stop

    def _note(self, report: StepReport, late: bool) -> None:
        self._readable, self._newest = self._newest if late else report, report
        self._steps_done = report.step

    def _save_checkpoint(self) -> None:
        assert self._checkpoints is not None
        self._best_improved = False
        self._copy_state(self._checkpoints.save)

    def _copy_state(self, copy: Callable[[ListTensors, OptimizerState, TrainState, SavedRows], None]) -> float:
        """Copy what a checkpoint holds; return the seconds that it took."""
        begin = time.perf_counter()
        with self.account.measure("checkpoint"):
            self.components.replicas.compare()
            self._part.sync_buffers()
            updates = self.components.trainer.updates.values()
            optimizer_state = {name: state for update in updates for name, state in update.state().items()}
            copy(lambda: saved_tensors(self._part), optimizer_state, self._train_state(), self.components.rows)
        return time.perf_counter() - begin

    def how_to_go_on(self) -> str:
        """What to do after the rows on servers are lost, for a person."""
        if self._checkpoints is None or self._checkpoints.saved_step < 0:
            return "there is no checkpoint to continue from: start the run again"
        return f"start the run again: it continues from the checkpoint of step {self._checkpoints.saved_step}"

    def _train_state(self) -> TrainState:
        start, trainer = self.components.state, self.components.trainer
        step = self._steps_done
        position = start.samples_after(step, self.job.global_batch)
        if not isinstance(trainer, Trainer):
            return TrainState(step=step, position=position, changes=start.changes)
        loss = self._newest.loss if self._newest is not None else self.last_loss
        return TrainState(
            step=step,
            position=position,
            loss=loss if math.isfinite(loss) else None,
            loss_scale=trainer.loss_scale.value,
            good_steps=trainer.loss_scale.good_steps,
            best=self.best.state if self.best is not None else None,
            updates=self.components.tables.updates if self.components.tables is not None else 0,
            rows=self.components.rows.point,
            changes=start.changes,
        )

    def _pass_on_events(self) -> None:
        assert self._checkpoints is not None
        for event in self._checkpoints.take_events():
            self.components.on_event(event)
