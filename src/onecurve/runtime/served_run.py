"""A run whose steps are computed by workers: what the servers hold, and what the run itself must have of it.

The run's own part of the model is used to evaluate and to save. It takes the weights from the servers when no worker
changes them.
"""

from collections.abc import Mapping, Sequence

import torch

from onecurve.describe.convert import to_json
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.job.cadence import is_reached
from onecurve.job.job import Job
from onecurve.job.row_point import StepVerdict
from onecurve.params.dense_rows import digest
from onecurve.params.served_tables import ServedTables
from onecurve.params.tickets import Tickets
from onecurve.runtime.run import Run
from onecurve.train.step_report import StepReport
from onecurve.train.trainer import Trainer

_STOP, _SAVE = 3, 4
"""Where the answers to these questions are in the sums of a step, see `StepOutcome`."""


class ServedRun:
    """What workers train, and when it is looked at."""

    def __init__(self, run: Run) -> None:
        tables, trainer = run.components.tables, run.components.trainer
        assert tables is not None
        assert isinstance(trainer, Trainer)
        (served,) = (holder for holder in tables.holders if isinstance(holder, ServedTables))
        assert served.dense is not None
        self._run, self._tables, self._served, self._dense = run, tables, served, served.dense
        self._update = trainer.update
        self._tensors = {tensor.name: tensor.local for tensor in run.components.part.state}

    def begin(self) -> Tickets:
        """Send the weights to the servers; return the tickets of the steps that are left."""
        states = self._update.state()
        only_tensors = {
            name: {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
            for name, state in states.items()
        }
        self._served.load_dense(self._dense.reader(self._tensors, only_tensors), self._tables.updates)
        return Tickets(
            counted=self._run.first_step,
            last=self._run.steps,
            row_step=self._served.step,
            pauses_after=self._pauses_after,
            verdicts=dict(self._served.verdicts),
        )

    @property
    def crew(self) -> int:
        """Number of the crew whose steps the servers take."""
        return self._served.crew.number

    @property
    def unsent(self) -> str:
        """Digest of the tensors that are not on the servers."""
        return digest({name: self._tensors[name] for name in self._dense.unsent})

    @property
    def facts(self) -> str:
        """What the run has found out about its job, as JSON."""
        return to_json(self._run.components.facts)

    def fill(self, row_step: int, verdicts: Mapping[int, StepVerdict]) -> None:
        """Push nothing in the row step of a worker that is lost."""
        self._served.fill(row_step, verdicts)

    @property
    def is_save_overdue(self) -> bool:
        """True if a save is due by the clock."""
        checkpoints = self._run.components.checkpoints
        return checkpoints is not None and checkpoints.overdue()

    def count(
        self, step: int, lr: float, nominal: float, sums: Sequence[float], memory: int, stops: bool, saves: bool
    ) -> StepReport:
        """Count what a worker has computed. `step`: so many count. `sums`: as in `StepReport`. `stops`, `saves`: it is
        to be the last step, or to be saved."""
        answers = {_STOP: float(stops), _SAVE: float(saves)}
        report = StepReport(
            step=step,
            lr=lr,
            samples=self._run.components.state.samples_after(step, self._run.job.global_batch),
            loss_scale=1.0,
            nominal=nominal,
            sums=torch.tensor([answers.get(at, value) for at, value in enumerate(sums)], dtype=torch.float64),
            memory=memory,
        )
        self._tables.updates += report.outcome.finite
        self._run.count(report)
        return report

    def take_weights(self, row_step: int, verdicts: Mapping[int, StepVerdict]) -> None:
        """Take the weights, and the states of the optimizer, from the servers. No worker pushes meanwhile.

        `row_step`: the newest one. `verdicts`: on the latest of them.
        """
        self._served.follow(row_step, verdicts)
        tables = self._served.read_dense()
        width = {name: self._dense.tables[name].width for name in tables}
        self._dense.write({name: values[:, : width[name]] for name, values in tables.items()}, self._tensors)
        trained = {tensor.name: tensor.local for tensor in self._update.local_tensors}
        self._update.load_state(self._dense.states(tables, trained))

    def _pauses_after(self, step: int) -> bool:
        save = self._run.job.save if self._run.components.checkpoints is not None else None
        intervals = (save.every, save.keep_every) if save is not None else ()
        before, now = self._run.point(step - 1), self._run.point(step)
        is_saved = any(is_reached(every, before, now) for every in intervals)
        return is_saved or self._run.evaluation_due(step)


def note_of_workers(job: Job) -> str:
    """What it means that workers compute the steps, for a person; empty if the ranks compute them together."""
    if not job.async_workers:
        return ""
    return (
        "mode='async': workers compute different steps at the same time, each with weights that lack the updates of "
        "the others, so the loss curve depends on timing, and nothing proves it"
    )


def refuse_unsuitable_for_workers(job: Job, plan: Plan) -> None:
    """Refuse plans that workers cannot compute, each of them alone."""
    if not job.async_workers:
        return
    if plan.mesh.size > 1:
        raise OnecurveError(
            f"plan {plan}: with mode='async' each worker computes whole steps alone; use a plan for one rank, such as "
            f"mb{job.global_batch}, or --ranks 1, and oc.Params(workers=…) for the number of workers"
        )
    if plan.precision == "fp16":
        raise OnecurveError(f"plan {plan}: with mode='async' the workers would need one loss scale; use bf16 or fp32")
