"""Plans a job for a cluster: traces its costs, times the model if the cluster is this host, searches.

`onecurve plan` asks for advice, a run without a plan for the best plan alone; both come from the same estimates.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace

from onecurve.data.training_data import TrainingData
from onecurve.describe.advice import Advice
from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import JobCosts
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Precision
from onecurve.device.device import local_device
from onecurve.estimate.estimator import Estimator
from onecurve.job.embedding import tables_of
from onecurve.job.job import Job
from onecurve.measure.accelerator_operations import AcceleratorOperations
from onecurve.measure.refusal import explain_trace_failure
from onecurve.model.deferred import defer_init
from onecurve.planner.advisor import DEVICES_PER_HOST, advise, estimate_with_layouts, faster_in_bf16
from onecurve.planner.clusters import Say
from onecurve.planner.job_costs import costs_of
from onecurve.planner.loss_test import refuse_unsplittable_loss, why_too_large
from onecurve.planner.table_sampling import TimeRows, sample_tables
from onecurve.planner.timing import time_model
from onecurve.planner.traced_model import TracedModel
from onecurve.search.branch_and_bound import BranchAndBound, SearchResult
from onecurve.search.space import Space

_WORTH_MENTIONING = 1.2
"""A precision that was not allowed is mentioned if it is at least this many times as fast."""


_CHUNKS = (256, 64, 16, 4)
"""Samples of a forward in which ids are counted; the first number that this host has memory for."""


class Planner:
    """One job on one cluster. Construction traces the model on fake tensors; no device is used."""

    def __init__(
        self,
        job: Job,
        data: TrainingData,
        cluster: Cluster,
        precisions: Sequence[Precision],
        say: Say,
        *,
        compare_precisions: bool = False,
        costs: JobCosts | None = None,
    ) -> None:
        """`precisions`: those that a plan may compute in. `compare_precisions` also prices bf16 where it is not among
        them but would be faster, so that advice can mention it. `costs`: what another planner of the job has traced."""
        self._job, self._data, self._cluster, self._say = job, data, cluster, say
        self._precisions = list(precisions)
        self._compared = _faster_precisions(cluster, precisions) if compare_precisions else []
        self._notes: list[str] = []
        self._table_notes: list[str] = []
        if costs is None:
            say("tracing the model")
        self.costs = costs if costs is not None else self._trace()
        """What is known about the job."""

    def test_loss(self) -> None:
        """Refuse a loss that a run would refuse. What cannot be tested here is added to the hints."""
        self._say("testing the loss")
        trace = self.costs.traces[self._precisions[0]]
        note = refuse_unsplittable_loss(self._job, self._data, trace, local_device(0))
        self._notes = [note] if note else []

    def sample_tables(self, time_rows: TimeRows) -> None:
        """Find out how the job uses its embedding tables, and use that in all estimates from now on."""
        if not self._table_notes or self.costs.tables:
            return
        self._say("counting the ids of the embedding tables")
        trace = self.costs.traces[self._precisions[0]]
        reason = why_too_large(trace, 1)
        chunk = next((samples for samples in _CHUNKS if not why_too_large(trace, samples)), 1)
        try:
            tables = () if reason else sample_tables(self._job, self._data, time_rows, chunk)
        except Exception as error:  # the user's model may not run on this host
            if isinstance(error, OnecurveError) and not isinstance(error, UserCodeError):
                raise
            tables, reason = (), f"{type(error).__name__}: {error}"
        self._table_notes = [f"{self._table_notes[0]} ({reason})"] if reason else []
        self.costs = replace(self.costs, tables=tables, has_row_servers=self._job.row_servers is not None)

    def time_model(self) -> None:
        """Time the model on this host's device, and use the timings in all estimates from now on."""
        self._say("timing the model on this device")
        precisions = [*self._precisions, *self._compared]
        deferred = defer_init(self._job.model, self._job.seed)
        timings = time_model(self._job, self._data, deferred, local_device(0), self._cluster, self.costs, precisions)
        self.costs = replace(self.costs, timings=timings)

    def ignore_read_time(self) -> None:
        """Leave the time to read data out of the estimates: it was measured here, and the cluster is elsewhere."""
        self.costs = replace(self.costs, read_seconds_per_sample=0.0)

    def best(self) -> Estimate | None:
        """Return the simplest of the fastest plans that fit, with its layouts and stages; None if none fits."""
        estimator = self._estimator(self._precisions)
        chosen = _search(estimator).chosen
        return None if chosen is None else estimate_with_layouts(estimator, chosen.plan)

    def advice(self, script: str) -> Advice:
        """Return the best plan, why the others lost, and hints."""
        self._say("searching")
        estimator = self._estimator(self._precisions)
        advice = advise(script, estimator, _search(estimator), _search)
        if self._compared:
            in_bf16 = self._estimator(self._compared)
            hint = faster_in_bf16(in_bf16, advice.best, _WORTH_MENTIONING, _search)
            advice = replace(advice, faster_precision=hint)
        return replace(advice, hints=(*advice.hints, *self._table_notes, *self._notes))

    def _trace(self) -> JobCosts:
        cluster = self._cluster
        max_degree = cluster.ranks_per_host
        kernels: AbstractContextManager[object] = nullcontext()
        if cluster.device_kind != "cpu":
            max_degree = max(DEVICES_PER_HOST, max_degree)  # so that hints can suggest larger hosts
            kernels = AcceleratorOperations()
        traced = TracedModel(self._job, self._data)
        if tables := tables_of(traced.model):
            self._table_notes = [f"the rows of the embedding tables ({', '.join(tables)}) are not in these predictions"]
        try:
            with kernels:
                return costs_of(traced, [*self._precisions, *self._compared], max_degree)
        except UserCodeError as error:
            raise UserCodeError(f"the model could not be traced on fake tensors: {error}") from error.__cause__
        except OnecurveError:
            raise
        except Exception as error:  # the user's model or loss may read values, which fake tensors do not have
            reason = explain_trace_failure(error, traced.model, "profile")
            raise OnecurveError(f"model: it could not be traced on fake tensors ({reason})") from error

    def estimator(self) -> Estimator:
        """Return what estimates plans of the job in the allowed precisions."""
        return self._estimator(self._precisions)

    def _estimator(self, precisions: Sequence[Precision]) -> Estimator:
        traces = {name: trace for name, trace in self.costs.traces.items() if name in precisions}
        timings = tuple(timing for timing in self.costs.timings if timing.precision in precisions)
        return Estimator(self._cluster, replace(self.costs, traces=traces, timings=timings))


def _search(estimator: Estimator) -> SearchResult:
    return BranchAndBound(Space(estimator)).run()


def _faster_precisions(cluster: Cluster, precisions: Sequence[Precision]) -> list[Precision]:
    device = cluster.groups[0].device
    faster = "bf16" in device.flops and device.speed("bf16") > _WORTH_MENTIONING * device.speed("fp32")
    return ["bf16"] if faster and "bf16" not in precisions else []
