"""The job's dataset, opened, with its order."""

from dataclasses import dataclass

from onecurve.data.loader import Reader, TrainingBatches
from onecurve.data.order import Order
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.job.batch import MicroBatch
from onecurve.job.job import Dataset, Job


@dataclass(frozen=True)
class TrainingData:
    """The job's dataset, opened, with its order."""

    reader: Reader
    order: Order
    steps: int

    def batches(self, plan: Plan, data_rank: int, workers: int) -> TrainingBatches:
        """A rank's batches, step by step."""
        return TrainingBatches(self.reader, self.order, plan, data_rank, self.steps, workers)

    def micro(self, begin: int, end: int) -> MicroBatch:
        """The samples at these positions as one micro-batch, read here and now."""
        return self.reader.batch(self.order.samples(begin, end))


def open_data(job: Job) -> TrainingData:
    dataset = open_dataset(job.data, "data")
    order = Order([len(dataset)], job.seed)
    return TrainingData(Reader(dataset, job.seed, job.collate), order, job.total_steps(order.size))


def open_dataset(build: object, name: str) -> Dataset:
    """Call the user's function; what it returns must have a length and be indexable."""
    assert callable(build)
    try:
        dataset = build()
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"Job: {name}() raised {type(error).__name__}: {error}") from error
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise OnecurveError(
            f"Job: {name}() returned {type(dataset).__name__}; a map-style dataset is needed, with __len__ and "
            "__getitem__ (iterable datasets have no order that could be kept)"
        )
    return dataset  # type: ignore[no-any-return]
