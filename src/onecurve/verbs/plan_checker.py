"""Compares the training under each plan with one-device references."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.apply.process_mesh import ProcessMesh, make_mesh
from onecurve.data.loader import Reader
from onecurve.data.order import Sample
from onecurve.data.training_data import TrainingData
from onecurve.describe.changed_buffers import ChangedBuffers, buffers_text
from onecurve.describe.convert import from_plain, to_plain
from onecurve.describe.errors import OnecurveError, UserCodeError, full_text
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan, Precision
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.units import counted
from onecurve.describe.verdict import Outcome, Verdict
from onecurve.device.collectives import all_gather_text
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor
from onecurve.device.world import World
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job
from onecurve.launch.stall_watch import StallWatch
from onecurve.model.deferred import defer_init
from onecurve.model.recorder import build_real
from onecurve.model.unchanged import functions_kept
from onecurve.params.tables import Tables
from onecurve.prove.comparison import (
    LIMIT,
    Difference,
    average_name,
    compare_step,
    first_or_worst,
    judge,
    rounding_may_explain,
)
from onecurve.prove.expected_differences import ExpectedDifferences
from onecurve.prove.loss_curve import MAX_CURVE_EXCESS, curve_excess
from onecurve.prove.moved_weights import apply_moves
from onecurve.runtime.assembly import Assembly, assemble, refuse_sparse_gradients, refuse_unmatched_groups
from onecurve.runtime.row_tables import RowAccess
from onecurve.train.part import Part
from onecurve.verbs.reference_tables import table_state
from onecurve.verbs.references import BuildModel, References
from onecurve.verbs.start_weights import StartWeights

_MIN_STALL_SECONDS = 120.0
_STALL_OVER_REFERENCE = 30
"""A plan is abandoned if one step takes longer than this multiple of the whole one-device run."""
_COMPILE_FACTOR = 5
"""The first step of a compiled plan takes minutes: the compiler's own operations pass through the modes of check."""

Progress = Callable[[], None]
"""Called when a model is built, and after every step."""


class PlanChecker:
    """One per rank. All ranks call its methods together."""

    def __init__(
        self,
        job: Job,
        data: TrainingData,
        device: Device,
        world: World,
        steps: int,
        precision: Precision,
        folder: Path,
        changed_buffers: ChangedBuffers,
        build: BuildModel = build_real,
        rows: RowAccess | None = None,
        checkpoint: tuple[str, str] | None = None,
    ) -> None:
        """`steps`: to compare; in float64 one more follows, from moved weights, unless the job has no further step.
        `folder`: for the references; all ranks see it. `build`: how the references build the model. `rows`: how row
        servers are reached. `checkpoint`: its location and name, if it has the weights to begin with."""
        self._rows = rows
        self.steps = steps
        self._exact = precision == "fp64"
        self._expected = ExpectedDifferences(self._exact)
        reader = data.reader
        data = replace(data, reader=_RealReader(reader.dataset, reader.seed, reader.collate, expected=self._expected))
        self._job, self._data, self._device, self._world = job, data, device, world
        self._meshes: dict[Mesh, ProcessMesh] = {}
        deferred = defer_init(job.model, job.seed)
        refuse_unmatched_groups(job, deferred)
        refuse_sparse_gradients(deferred)
        self._messages = deferred.messages
        self._start = StartWeights(*checkpoint, job, deferred.module, data) if checkpoint is not None else None
        self._has_batch_norm = any(isinstance(module, _BatchNorm) for module in deferred.module.modules())
        self._changed_buffers = changed_buffers
        self.references = References(
            job,
            data,
            device,
            world,
            min(steps + 1, data.steps) if self._exact else steps,
            self._exact,
            self._has_batch_norm,
            changed_buffers,
            folder,
            self._expected,
            build,
            self._start,
        )

    def reference_count(self, plans: Sequence[Plan]) -> int:
        """Return the number of one-device runs that these plans are compared with."""
        return len(self.references.variants(plans))

    def train_references(self, plans: Sequence[Plan]) -> None:
        """Train the one-device runs that these plans are compared with."""
        self.references.train(plans)

    def reference_seconds(self, plan: Plan) -> float:
        """Return how long the training of the plan's reference took."""
        return self.references.run(self.references.variant(plan), 0).seconds

    def limit(self, plans: Sequence[Plan]) -> float:
        """Return the largest difference that counts as equal for any of these plans, in the unit of `Verdict.size`."""
        if not self._exact:
            return MAX_CURVE_EXCESS
        variants = self.references.variants(plans)
        return max((each.overall for v in variants for each in self.references.limits(v)), default=LIMIT)

    def check(self, resolved: ResolvedPlan) -> Verdict:
        """Train under a plan and compare. Every rank of the world must call this, and gets the same verdict.

        A rank that makes no progress ends its process.
        """
        if self._world.size == 1:
            return self._check(resolved, lambda: None)
        seconds = max(_MIN_STALL_SECONDS, _STALL_OVER_REFERENCE * self.reference_seconds(resolved.plan))
        seconds *= _COMPILE_FACTOR if resolved.plan.compile else 1
        with StallWatch(f"plan {resolved.plan}", seconds) as watch:
            return self._check(resolved, watch.progress)

    def _check(self, resolved: ResolvedPlan, progress: Progress) -> Verdict:
        plan = resolved.plan
        if plan.mesh not in self._meshes:
            self._meshes[plan.mesh] = make_mesh(plan.mesh, self._world.rank, self._device.kind)
        mesh = self._meshes[plan.mesh]
        own = self._own_result(resolved, mesh, progress) if mesh.member else None
        verdict = self._verdict(plan, own)
        if self._exact and verdict.outcome == "differs" and rounding_may_explain(verdict.tensor, verdict.size):
            self.references.train_more(self.references.variant(plan))
            progress()
            verdict = self._verdict(plan, own)
        return verdict

    def _verdict(self, plan: Plan, own: "_RankResult | None") -> Verdict:
        """Exchange what the ranks found; `own` is None on a rank that the plan does not use."""
        reported = json.dumps(to_plain(self._reported(plan, own))) if own else ""
        texts = [text for text in all_gather_text(reported) if text]
        results = [from_plain(_RankResult, json.loads(text), "verdict") for text in texts]
        if failed := next((result for result in results if not result.differences), None):
            outcome: Outcome = "refused" if failed.is_refusal else "failed"
            return Verdict(plan=str(plan), outcome=outcome, reason=failed.reason)
        difference = first_or_worst([difference for result in results for difference in result.differences])
        return Verdict(
            plan=str(plan),
            outcome="holds" if difference.holds else "differs",
            size=difference.size,
            limit=difference.limit,
            step=difference.step + 1,
            moved=self.references.moves_after is not None and difference.step > self.references.moves_after,
            tensor=difference.tensor,
        )

    def _reported(self, plan: Plan, own: "_RankResult") -> "_RankResult":
        """The result with the one difference that other ranks need to know."""
        if not own.differences:
            return own
        limits = self.references.limits(self.references.variant(plan)) if self._exact else None
        judged = judge(own.differences, limits) if limits else own.differences
        return replace(own, differences=(first_or_worst(judged),))

    @property
    def has_dropout(self) -> bool:
        """True if the model has dropout, which is switched off."""
        return self._expected.has_dropout

    def notes(self, plans: Sequence[Plan], verdicts: Sequence[Verdict]) -> list[str]:
        """Return what a reader of the verdicts should know. Every rank must call this."""
        notes = [*self._messages]
        if self._start is not None:
            notes.append(f"compared from the weights of {self._start.text}, with a new optimizer and the first samples")
        if self._has_batch_norm:
            notes.append("batch norm sees one round at a time, so the one-device run uses as many rounds as the plan")
        notes += self._buffer_notes(plans)
        if self._job.has_local_loss:
            notes.append(
                "the loss depends on the micro-batch size, so the one-device run uses the plan's micro-batches"
            )
        notes += dict.fromkeys(note for plan in plans for note in self.moved_notes(plan))
        of_ranks = all_gather_text("\n".join(self._expected.notes))
        notes += dict.fromkeys(note for text in of_ranks for note in text.splitlines())
        if self._exact and (limit := self.limit(plans)) > LIMIT:
            notes.append(
                f"this model amplifies rounding errors: the limit is {limit:.0e}, 30 times the distance by which a "
                "one-device run moves if its weights are perturbed by 1e-15"
            )
        if self._exact and any(verdict.outcome == "differs" and 1e-9 < verdict.size < 1e-5 for verdict in verdicts):
            notes.append(
                "differences near 1e-7 hint at a float32 cast inside the model or loss ('.float()', float32 constants)"
            )
        return notes

    def moved_notes(self, plan: Plan) -> list[str]:
        """What the step from moved weights did not show; empty if it showed everything."""
        found = self.references.run(self.references.variant(plan), 0)
        if found.obstacle:
            return [f"no step from moved weights was compared: {found.obstacle}"]
        if names := found.without_gradient:
            verb = "has" if len(names) == 1 else "have"
            return [f"{counted(len(names), 'parameter')} {verb} no gradient in this check (first: {names[0]!r})"]
        return []

    def _buffer_notes(self, plans: Sequence[Plan]) -> Iterator[str]:
        if names := self._changed_buffers.names:
            yield (
                f"forward changes {buffers_text(names)} once per round, so the one-device run uses as many rounds as "
                "the plan"
            )
        if self._changed_buffers.data_dependent and any(plan.mesh.data > 1 for plan in plans):
            yield (
                f"the one-device run takes the average of {buffers_text(self._changed_buffers.data_dependent)} over "
                "the plan's micro-batches after each round (buffers='average')"
            )

    def _own_result(self, resolved: ResolvedPlan, mesh: ProcessMesh, progress: Progress) -> "_RankResult":
        """Compare this rank's part. If other ranks take part, an error ends the process: they may wait for this one."""
        try:
            return _RankResult(tuple(self._differences(resolved, mesh, progress)))
        except Exception as error:  # the user's model and loss run here
            if resolved.plan.mesh.size > 1:
                raise
            is_refusal = isinstance(error, OnecurveError) and not isinstance(error, UserCodeError)
            return _RankResult((), full_text(error), is_refusal)

    def _differences(self, resolved: ResolvedPlan, mesh: ProcessMesh, progress: Progress) -> list[Difference]:
        deferred = defer_init(self._job.model, self._job.seed)
        self._expected.disable_dropout(deferred.module)
        functions = self._job.model, self._job.loss, *self._job.metrics.values()
        with functions_kept(*functions), self._expected.removed():
            assembly = assemble(self._job, resolved, mesh, self._device, self._data, deferred, rows=self._rows)
            if self._start is not None:
                self._start.load_part(assembly.part, resolved.plan.mesh, self._world.rank)
            progress()
            compare = self._exact_differences if self._exact else self._curve_difference
            try:
                return compare(assembly, resolved.plan, progress)
            finally:
                if assembly.tables is not None:
                    assembly.tables.close()

    def _exact_differences(self, assembly: Assembly, plan: Plan, progress: Progress) -> list[Difference]:
        folder, part = self.references.folder(self.references.variant(plan)), assembly.part
        lr = max(assembly.trainer.update.base_rates)
        differences: list[Difference] = []
        for step, loss in self._losses(assembly, plan):
            part.sync_buffers()
            rows = self._row_state(part, plan, folder)
            state = [*part.state, *rows, *_averages(assembly)]
            differences += compare_step(state, part.trainable, step, loss, lr, folder)
            if step == self.references.moves_after:
                apply_moves(part.parameters, folder)
                part.drop_gathered()
            progress()
        return differences

    def _row_state(self, part: Part, plan: Plan, folder: Path) -> list[LocalTensor]:
        """The rows of embedding tables. Before, the model is evaluated on samples that it is not trained on: this must
        create no rows."""
        if not isinstance(part.tables, Tables):
            return []
        begin = (self.steps + 1) * plan.global_batch
        part.infer(part.place(self._data.trial_micro(begin, begin + 1)))
        return table_state(part.tables, part.group, folder)

    def _curve_difference(self, assembly: Assembly, plan: Plan, progress: Progress) -> list[Difference]:
        reference, *perturbed = self.references.curves(self.references.variant(plan))
        curve = []
        for _, loss in self._losses(assembly, plan):
            curve.append(loss)
            progress()
        excess = curve_excess(curve, reference, perturbed)
        return [Difference(len(curve) - 1, "loss curve", excess, MAX_CURVE_EXCESS)]

    def _losses(self, assembly: Assembly, plan: Plan) -> Iterator[tuple[int, float]]:
        data_rank = plan.mesh.data_rank(self._world.rank)
        batches = self._data.batches(plan, data_rank, workers=0, ahead=self._job.staleness.steps)
        for batch in islice(batches, len(self.references.run(self.references.variant(plan), 0).losses)):
            yield batch.step - 1, assembly.trainer.step(batch.step, batch.rounds, batch.upcoming).loss


def _averages(assembly: Assembly) -> list[LocalTensor]:
    """The averages of the weights, as tensors with names of their own."""
    averages = assembly.trainer.averages
    if averages is None:
        return []
    return [
        replace(tensor, name=average_name(tensor.name), local=average)
        for tensor, average in averages.local_tensors(assembly.part.trainable)
    ]


@dataclass(frozen=True)
class _RankResult:
    """What one rank found for one plan."""

    differences: tuple[Difference, ...]
    """Empty if the plan could not be compared."""
    reason: str = ""
    is_refusal: bool = False


@dataclass(frozen=True)
class _RealReader(Reader):
    """Reads samples with real random numbers while the model draws constants."""

    expected: ExpectedDifferences | None = None

    def batch(self, samples: Iterable[Sample], replaces_skipped: bool = False) -> MicroBatch:
        assert self.expected is not None
        with self.expected.allowed():
            return super().batch(samples, replaces_skipped)
