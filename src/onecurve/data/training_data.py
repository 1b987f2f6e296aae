"""The job's training dataset together with its sample order and the number of steps."""

from dataclasses import dataclass

from onecurve.data.loader import Reader, TrainingBatches
from onecurve.data.order import Order
from onecurve.data.source import Source
from onecurve.data.warmup_order import WarmUpOrder
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Dataset, Job


@dataclass(frozen=True)
class TrainingData:
    """The job's training dataset, opened, with its sample order and the number of optimizer steps."""

    reader: Reader
    order: Order
    steps: int

    def batches(self, plan: Plan, data_rank: int, workers: int, ahead: int = 0) -> TrainingBatches:
        """The batches of one data-parallel rank, one per step, read by `workers` processes. Each has those of the
        `ahead` steps after it."""
        return TrainingBatches(self.reader, self.order, plan, data_rank, self.steps, workers, ahead)

    def micro(self, begin: int, end: int) -> MicroBatch:
        """Read the samples at positions begin … end-1 in this process, as one micro-batch."""
        return self.reader.batch(self.order.samples(begin, end))

    def trial_micro(self, begin: int, end: int, copies: int = 1) -> MicroBatch:
        """The same for a trial: `copies` times in a row, and with others in the place of skipped samples."""
        return self.reader.batch([*self.order.samples(begin, end)] * copies, replaces_skipped=True)


def open_data(job: Job) -> TrainingData:
    """Build the job's training dataset and its sample order."""
    dataset = open_dataset(job.data, "data")
    order = dataset.order(job.seed) if isinstance(dataset, Source) else Order([len(dataset)], job.seed)
    if job.warmup_samples:
        order = WarmUpOrder(order, job.warmup_samples, job.staleness.warmup_data)
    return TrainingData(Reader(dataset, job.seed, job.collate), order, job.total_steps(order.size))


def open_dataset(build: object, name: str) -> Dataset:
    """Call the user's function `build`, which must return an object with a length and an index operator."""
    assert callable(build)
    try:
        dataset = build()
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"Job: {name}() raised {type(error).__name__}: {error}") from error
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise OnecurveError(
            f"Job: {name}() must return a map-style dataset, with __len__ and __getitem__, got "
            f"{type(dataset).__name__}; iterable datasets are not supported, because they have no sample order that "
            "can be reproduced on other ranks"
        )
    return dataset  # type: ignore[no-any-return]
