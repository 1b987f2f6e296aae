"""The data loaders of one rank."""

from dataclasses import dataclass

from onecurve.data.loader import EvaluationBatches, Reader, TrainingBatches
from onecurve.data.loader_pace import Workers
from onecurve.data.order import WHOLE, Sample
from onecurve.data.source import Source
from onecurve.data.training_data import TrainingData, open_dataset
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Job


@dataclass(frozen=True)
class Loaders:
    """Loader processes live as long as the rank. They are forked, so open them before the rank starts threads."""

    training: TrainingBatches
    evaluation: EvaluationBatches | None = None
    evaluation_sample: MicroBatch | None = None
    """One sample of the evaluation data, to try loss and metrics on."""


def open_evaluation(job: Job) -> Reader | None:
    """The reader of the job's evaluation data; None if it has none."""
    if job.evaluate is None:
        return None
    dataset = open_dataset(job.evaluate.data, "evaluate.data")
    if isinstance(dataset, Source) and not dataset.has_end:
        raise OnecurveError("Evaluate: data is a stream, which has no end; evaluate on a dataset with a length")
    return Reader(dataset, job.seed, job.collate)


def open_loaders(
    job: Job, data: TrainingData, evaluation: Reader | None, plan: Plan, data_rank: int, workers: Workers
) -> Loaders:
    """`workers`: loader processes per loader; none reads in this process."""
    training = data.batches(plan, data_rank, workers, job.staleness.steps)
    if evaluation is None:
        return Loaders(training)
    batches = EvaluationBatches(evaluation, plan, data_rank, workers.first)
    return Loaders(training, batches, evaluation.batch([Sample(0, WHOLE, 0)]))
