"""What a rank process makes once and uses in every generation: the job, its data, loader processes, trial results."""

from collections.abc import Mapping
from pathlib import Path

from onecurve.data.loader_pace import Workers
from onecurve.data.training_data import open_data
from onecurve.describe.job_facts import JobFacts
from onecurve.describe.plan import Plan
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.model.adapters import stored_names
from onecurve.model.deferred import DeferredModel, defer_init
from onecurve.runtime.assembly import TrialResults, first_names, refuse_sparse_gradients, refuse_unmatched_groups
from onecurve.runtime.data_cache import open_cache
from onecurve.runtime.fingerprint import fingerprint
from onecurve.runtime.loaders import Loaders, open_evaluation, open_loaders
from onecurve.runtime.same_data import agree_on_data, marks_of, overlap_texts, samples_field


class JobProcess:
    """A job in this process. Make it before the process has threads: the loader processes are forked from it."""

    def __init__(self, job: Job, plan: Plan, world: World, workers: Workers, lanes: Path | None = None) -> None:
        """`plan`, `world`: of the first generation. `workers`: loader processes per loader.
        `lanes`: a folder for the states of a stream."""
        self.job = job
        self.data = open_data(job)
        if lanes is not None:
            self.data.keep_states(lanes)
        evaluation = open_evaluation(job)
        self.cache = open_cache(job, self.data, evaluation, world)
        self.loaders = open_loaders(job, self.data, evaluation, plan, plan.mesh.data_rank(world.rank), workers)
        if self.cache is not None:
            self.loaders.training.on_position = self.cache.reach
        self.trials = TrialResults()
        self._unused: DeferredModel | None = defer_init(job.model, job.seed)
        deferred = self._unused
        refuse_unmatched_groups(job, deferred)
        refuse_sparse_gradients(deferred)
        self.fingerprint: Mapping[str, str] = fingerprint(job, deferred.module, self.data)
        # After the loader processes were forked: they must not share what a dataset opens at its first sample.
        self.marks = marks_of(self.data.reader, evaluation, twice=world.rank == 0)
        self._evaluation = evaluation
        self.overlap = ""
        """What the first rank has found out about evaluation data that is in the training data too."""
        self.stored_names = stored_names(deferred.module, first_names(deferred.module))
        """Every name that a tensor may have in a file of weights → the names of the tensors that it fills."""
        self.parameters = deferred.parameters
        self.model_messages = deferred.messages

    def agree_on_data(self, world: World) -> None:
        """Refuse a run whose ranks have different data; from then on all have the marks of the first."""
        self.marks = agree_on_data(self.marks, world)

    def compare_evaluation(self) -> None:
        """Look for samples of evaluations in the training data."""
        self.overlap = overlap_texts(self.data.reader, self._evaluation)

    @property
    def saved_fingerprint(self) -> dict[str, str]:
        """The fingerprint with the marks of some samples, which are compared with a tolerance."""
        return {**self.fingerprint, **samples_field(self.marks)}

    def assign(self, plan: Plan, data_rank: int) -> Loaders:
        """Let the loaders read the shares of this plan and rank."""
        self.loaders.training.assign(plan, data_rank)
        for each in self.loaders.of_evaluations:
            each.assign(plan, data_rank)
        return self.loaders

    def know(self, facts: JobFacts | None) -> None:
        """Use the results of earlier trials, or forget those of this process: all ranks must know the same."""
        self.trials = TrialResults()
        if facts is not None:
            self.trials = TrialResults(facts.loss_note, facts.loss_form, facts.leaves_unused)

    def facts(self, resolved: ResolvedPlan) -> JobFacts:
        """What is known after the trials."""
        trials = self.trials
        return JobFacts(
            resolved=resolved,
            loss_note=trials.loss_note,
            loss_form=trials.loss_form,
            leaves_unused=trials.leaves_unused,
        )

    def deferred(self) -> DeferredModel:
        """Return the model without memory. Each generation builds its part from one of its own."""
        deferred, self._unused = self._unused or defer_init(self.job.model, self.job.seed), None
        return deferred
