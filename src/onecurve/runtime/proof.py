"""What a run asks of a proof of its plan. verbs/ provides it, because the proof trains on one device as check does."""

from collections.abc import Mapping
from typing import Protocol

from onecurve.data.training_data import TrainingData
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.describe.run_agenda import ProofAgenda
from onecurve.device.device import Device
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.model.deferred import DeferredModel
from onecurve.runtime.row_tables import RowAccess


class Proof(Protocol):
    """Compares steps under a plan with one device before the run begins."""

    def agenda(
        self,
        job: Job,
        data: TrainingData,
        deferred: DeferredModel,
        resolved: ResolvedPlan,
        fingerprint: Mapping[str, str],
    ) -> ProofAgenda:
        """Decide on the first rank, before the process group exists, what is to be proved."""

    def prove(
        self,
        agenda: ProofAgenda,
        job: Job,
        data: TrainingData,
        device: Device,
        world: World,
        rows: RowAccess | None,
    ) -> None:
        """Raise OnecurveError if the plan computes something else. All ranks of the world call it.

        `rows`: how row servers are reached."""
