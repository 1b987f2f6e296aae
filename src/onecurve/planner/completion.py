"""Completes a plan that splits a model without saying where: layouts, stages, blocks, dataflow."""

from dataclasses import replace
from functools import cached_property

from torch.nn.modules.batchnorm import _BatchNorm

from onecurve.data.training_data import TrainingData
from onecurve.describe.changed_buffers import ChangedBuffers, refusal_of_mesh, refusal_of_rounds, refusal_of_whole
from onecurve.describe.dataflow import Dataflow
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.job.embedding import refuse_unsuitable_tables, tables_of
from onecurve.job.job import Job
from onecurve.measure.blocks import find_blocks
from onecurve.measure.refusal import explain_trace_failure
from onecurve.model.deferred import DeferredModel, defer_init
from onecurve.model.python_state import python_state_kept
from onecurve.model.shared_memory import kept_whole
from onecurve.planner.branches import refuse_branching_blocks
from onecurve.planner.pipeline_stages import assign_blocks, refuse_mismatched_stages
from onecurve.planner.real_forward import try_real_forward
from onecurve.planner.tensor_layouts import layouts_for, refuse_unsupported_split
from onecurve.planner.traced_model import TracedModel


class PlanCompleter:
    """Completes plans of one model. It traces the model once, and only if a plan asks for it.

    Layouts are derived over a fake process group, so this must happen before the process joins a real one.
    """

    def __init__(self, job: Job, data: TrainingData, deferred: DeferredModel | None = None) -> None:
        """`deferred` is the recorded model, if the caller has it already; it is copied, not changed."""
        self._job, self._data = job, data
        self._deferred = deferred or defer_init(job.model, job.seed)
        self._traced: TracedModel | None = None
        self._layouts: dict[int, dict[str, str]] = {}
        self._stages: dict[int, tuple[int, ...]] = {}
        self._tried_splits: set[object] = set()
        self._blocks_are_always_called = False

    def resolve(self, plan: Plan) -> ResolvedPlan:
        """Return the plan with its layouts and stages, and what apply/ needs to know about the model.

        The traces run a copy of the model, which shares with it what copies of Python objects share: closures of hooks,
        attributes of classes, global variables.
        """
        with python_state_kept(self._deferred.module, self._job.loss):
            return self._resolve(plan)

    def _resolve(self, plan: Plan) -> ResolvedPlan:
        self._refuse_differing_buffers(plan)
        if self.has_tables and self._job.row_servers is not None and not plan.tables:
            plan = replace(plan, tables={"*": "served"})
        refuse_unsuitable_tables(self._deferred.module, plan)
        if plan.is_served and self._job.row_servers is None:
            raise OnecurveError(f"plan {plan}: no servers for the rows: the job needs params, for example 'local://2'")
        if plan.mesh.tensor > 1 and not plan.layouts:
            plan = replace(plan, layouts=self._layouts_of(plan))
        if plan.mesh.tensor > 1 and self._deferred.recorder is not None:
            self._try_split(plan)
        if (plan.mesh.shard > 1 or plan.mesh.pipeline > 1) and self._deferred.recorder is not None:
            self._refuse_branching_blocks(plan)
        if plan.mesh.pipeline > 1:
            dataflow = self._model.dataflow_for(plan.stage_count)
            if not plan.stages:
                plan = replace(plan, stages=self._stages_of(plan, dataflow))
            refuse_mismatched_stages(plan, dataflow)
            return ResolvedPlan(plan, dataflow.blocks, dataflow, self.changed_buffers)
        wraps_blocks = plan.mesh.shard > 1 or plan.recompute != "none" or plan.compile
        blocks = self._blocks() if wraps_blocks else ()
        return ResolvedPlan(plan, blocks, changed_buffers=self.changed_buffers)

    @property
    def has_tables(self) -> bool:
        """True if the model has embedding tables."""
        return bool(tables_of(self._deferred.module))

    @cached_property
    def changed_buffers(self) -> ChangedBuffers:
        """What forward changes, as far as a trial forward shows it; a run verifies it in its first step."""
        try:
            if self._deferred.recorder is None:
                return try_real_forward(self._job, self._data)
            return self._model.changed_buffers
        except Exception as error:  # the user's model runs on fake tensors here, or perhaps on another device
            explain_trace_failure(error, self._deferred.module, "changed buffers")
            return ChangedBuffers(reads_values=True)

    def _refuse_differing_buffers(self, plan: Plan) -> None:
        norms = any(isinstance(module, _BatchNorm) for module in self._deferred.module.modules())
        averages, syncs = self._job.buffers == "average", norms and self._job.batch_norm == "sync"
        reason = refusal_of_whole(self._kept_whole, plan.mesh)
        if not reason and (plan.mesh.size > 1 or plan.rounds > 1):
            changed = self.changed_buffers
            reason = refusal_of_mesh(changed, plan.mesh, averages, syncs)
            reason = reason or refusal_of_rounds(changed, plan.rounds, averages)
        if reason:
            raise OnecurveError(f"model: {reason}")

    @cached_property
    def _kept_whole(self) -> str:
        return kept_whole(self._deferred.module)

    @property
    def _model(self) -> TracedModel:
        if self._traced is None:
            self._traced = TracedModel(self._job, self._data, self._deferred)
        return self._traced

    def _refuse_branching_blocks(self, plan: Plan) -> None:
        if not self._blocks_are_always_called:
            refuse_branching_blocks(plan, self._model)
            self._blocks_are_always_called = True

    def _layouts_of(self, plan: Plan) -> dict[str, str]:
        degree = plan.mesh.tensor
        if degree not in self._layouts:
            try:
                self._layouts[degree] = layouts_for(plan, self._model)
            except UserCodeError as error:
                raise OnecurveError(
                    f"plan {plan}: the model cannot be traced, which 'tensor' needs to find its layouts; use another "
                    f"axis, such as 'replicate' ({error})"
                ) from error
        return self._layouts[degree]

    def _try_split(self, plan: Plan) -> None:
        split = plan.mesh.tensor, plan.sequence, tuple(plan.layouts.items())
        if split not in self._tried_splits:
            refuse_unsupported_split(plan, self._model)
            self._tried_splits.add(split)

    def _stages_of(self, plan: Plan, dataflow: Dataflow) -> tuple[int, ...]:
        count = plan.stage_count
        if count not in self._stages:
            self._stages[count] = assign_blocks(plan, self._model, dataflow)
        return self._stages[count]

    def _blocks(self) -> tuple[str, ...]:
        """A model whose constructor could not be recorded cannot be traced: then every likely block counts."""
        if self._deferred.recorder is None:
            return tuple(find_blocks(self._deferred.module))
        return tuple(self._model.blocks)
