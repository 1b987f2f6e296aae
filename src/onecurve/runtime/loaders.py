"""The data loaders of one rank."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onecurve.data.evaluation_batches import EvaluationBatches
from onecurve.data.loader import Reader, TrainingBatches
from onecurve.data.loader_pace import Workers
from onecurve.data.order import WHOLE, Sample
from onecurve.data.source import Source
from onecurve.data.training_data import TrainingData, open_dataset
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.job.batch import MicroBatch
from onecurve.job.dataset import Dataset
from onecurve.job.job import Job


@dataclass(frozen=True)
class Loaders:
    """Loader processes live as long as the rank. They are forked, so open them before the rank starts threads."""

    training: TrainingBatches
    evaluation: EvaluationBatches | None = None
    test: EvaluationBatches | None = None
    """For the end of training."""
    evaluation_sample: MicroBatch | None = None
    """One sample of the evaluation data, to try loss and metrics on."""

    @property
    def of_evaluations(self) -> list[EvaluationBatches]:
        return [each for each in (self.evaluation, self.test) if each is not None]


def open_evaluation(job: Job) -> dict[str, Reader]:
    """The readers of the job's data for evaluations: `data`, and `test` if it has that."""
    builders = {"data": job.evaluate.data, "test": job.evaluate.test} if job.evaluate is not None else {}
    return {name: _opened(job, build, name) for name, build in builders.items() if build is not None}


def _opened(job: Job, build: Callable[[], Dataset], name: str) -> Reader:
    dataset = open_dataset(build, f"evaluate.{name}", job.seed)
    if isinstance(dataset, Source) and not dataset.has_end:
        raise OnecurveError(f"Evaluate: {name} is a stream, which has no end; evaluate on a dataset with a length")
    return Reader(dataset, job.seed, job.collate)


def open_loaders(
    job: Job, data: TrainingData, evaluation: Mapping[str, Reader], plan: Plan, data_rank: int, workers: Workers
) -> Loaders:
    """`workers`: loader processes per loader; none reads in this process."""
    training = data.batches(plan, data_rank, workers, job.staleness.steps, job.audit)
    batches = {name: EvaluationBatches(each, plan, data_rank, workers.first) for name, each in evaluation.items()}
    sample = evaluation["data"].batch([Sample(0, WHOLE, 0)]) if evaluation else None
    return Loaders(training, batches.get("data"), batches.get("test"), sample)
