"""The job's training dataset together with its sample order and the number of steps."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from onecurve.data.loader import Reader, TrainingBatches
from onecurve.data.loader_pace import Workers
from onecurve.data.order import Order
from onecurve.data.source import Source
from onecurve.data.stream import StreamSource
from onecurve.data.warmup_order import WarmUpOrder
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.rng import seeded
from onecurve.job.batch import MicroBatch
from onecurve.job.dataset import Dataset
from onecurve.job.job import Job

_ONE_LANE = (
    "data: it can only be iterated over, so every rank reads all of it and takes its part, and a run that continues "
    "reads it again from its beginning, unless it has state_dict and load_state_dict; divide it with "
    "oc.data.stream(open_lane, lanes=64)"
)


@dataclass(frozen=True)
class TrainingData:
    """The job's training dataset, opened, with its sample order and the number of optimizer steps."""

    reader: Reader
    order: Order
    steps: int

    def batches(
        self, plan: Plan, data_rank: int, workers: Workers | int, ahead: int = 0, audit: int | None = None
    ) -> TrainingBatches:
        """The batches of one data-parallel rank, one per step, read by loader processes, as many as it takes or
        `workers`. Each has those of the `ahead` steps after it. A stream is read by one process: another one would read
        all of its lanes too, and no rounds of other ranks are read for an audit."""
        if self.is_stream:
            workers, audit = min(1, Workers.of(workers).most), None
        return TrainingBatches(self.reader, self.order, plan, data_rank, self.steps, workers, ahead, audit)

    @property
    def note(self) -> str:
        """What a person should know about the data."""
        return self.reader.dataset.note if isinstance(self.reader.dataset, Source) else ""

    @property
    def is_stream(self) -> bool:
        return isinstance(self.reader.dataset, Source) and not self.reader.dataset.has_end

    def keep_states(self, folder: Path) -> None:
        """Store in this folder what lets a stream continue."""
        if isinstance(self.reader.dataset, Source):
            self.reader.dataset.keep_states(folder)

    @property
    def epoch_samples(self) -> int:
        """Samples of an epoch; 0 if the data has no end."""
        dataset = self.reader.dataset
        return 0 if isinstance(dataset, Source) and not dataset.has_end else self.order.size

    def micro(self, begin: int, end: int) -> MicroBatch:
        """Read the samples at positions begin … end-1 in this process, as one micro-batch."""
        return self.reader.batch(self.order.samples(begin, end))

    def round(self, plan: Plan, position: int, number: int) -> MicroBatch:
        """Read a round of the step that begins at `position` in this process, for a plan of one rank."""
        return self.reader.batch(self.order.share(plan, 0, position, number))

    def trial_micro(self, begin: int, end: int, copies: int = 1) -> MicroBatch:
        """The same for a trial: `copies` times in a row, and with others in the place of skipped samples."""
        return self.reader.batch([*self.order.samples(begin, end)] * copies, replaces_skipped=True)


def open_data(job: Job) -> TrainingData:
    """Build the job's training dataset and its sample order."""
    dataset = open_dataset(job.data, "data", job.seed)
    order = dataset.order(job.seed) if isinstance(dataset, Source) else Order([len(dataset)], job.seed)
    if isinstance(dataset, Source) and not dataset.has_end:
        _refuse_unsuitable_stream(job, len(dataset.piece_sizes))
    if job.warmup_samples:
        order = WarmUpOrder(order, job.warmup_samples, job.staleness.warmup_data)
    return TrainingData(Reader(dataset, job.seed, job.collate), order, job.total_steps(order.size))


def open_dataset(build: object, name: str, seed: int) -> Dataset:
    """Call the user's function `build`, which must return an object with a length and an index operator.

    The data of training and of evaluations are built with the same random numbers, those of the job's seed: two random
    splits of one dataset complement each other.
    """
    assert callable(build)

    def build_seeded() -> Any:
        with seeded(mix(seed)):
            return build()

    try:
        dataset = build_seeded()
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"Job: {name}() raised {type(error).__name__}: {error}") from error
    if isinstance(dataset, Iterator):
        raise OnecurveError(
            f"Job: {name}() returned an iterator, which can be read only once; return an object whose __iter__ begins "
            "anew each time, or use oc.data.stream(lambda lane: my_generator(), lanes=1)"
        )
    if isinstance(dataset, DataLoader):
        raise OnecurveError(
            f"Job: {name}() returned a DataLoader; return its dataset instead. What a DataLoader has besides it is "
            "Job(global_batch=…, workers=…, collate=…); samples are always shuffled"
        )
    if isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__getitem__")):
        return StreamSource(lambda _: build_seeded(), lanes=1, note=_ONE_LANE)  # a new one: this one may keep a state
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise OnecurveError(
            f"Job: {name}() must return a map-style dataset, with __len__ and __getitem__, or one that can be iterated "
            f"over, got {type(dataset).__name__}"
        )
    return dataset  # type: ignore[no-any-return]


def _refuse_unsuitable_stream(job: Job, lanes: int) -> None:
    if job.epochs is not None:
        raise OnecurveError("Job: the data is a stream, which has no end: set steps=… instead of epochs=…")
    for name, part in (("Evaluate", job.evaluate), ("Save", job.save)):
        if part is not None and part.every == "epoch":
            raise OnecurveError(f"{name}: every='epoch', but the data is a stream, which has no end: give steps")
    if job.global_batch % lanes and lanes % job.global_batch:
        raise OnecurveError(
            f"stream: lanes={lanes} and global_batch={job.global_batch}: one must divide the other, so that each rank "
            f"has lanes of its own; for example lanes={math.gcd(lanes, job.global_batch)} or "
            f"lanes={job.global_batch}"
        )
    if job.warmup_samples:
        raise OnecurveError("Params: warmup_data is a part of an epoch, and a stream has none; use no warmup with it")
