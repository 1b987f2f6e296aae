"""Reads this rank's share of each step ahead of time, in the worker processes of torch's DataLoader.

Each micro-batch is collated from its own samples; it is never a slice of a larger batch. Before `dataset[i]` the random
generators of Python, NumPy and torch are seeded by (seed, epoch, i), so augmentation is the same under every plan.
"""

import atexit
import multiprocessing
import os
import signal
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.process import BaseProcess
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import default_collate

from onecurve.data.late_loader import LateLoader
from onecurve.data.load_watch import LoadWatch
from onecurve.data.loader_pace import LoaderPace, Workers
from onecurve.data.order import WHOLE, Order, Sample
from onecurve.data.source import Source
from onecurve.data.training_shares import TrainingShares
from onecurve.describe.errors import OnecurveError, UserCodeError, full_text
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.cores import unpin_cores
from onecurve.device.parent_process import die_with_parent
from onecurve.device.process_name import set_process_name
from onecurve.device.rng import preserve_rng_state, seed_all
from onecurve.formats.file_format import SKIPPED
from onecurve.job.batch import MicroBatch, as_micro_batch
from onecurve.job.dataset import Dataset

Collate = Callable[[list[Any]], Any]
_MAX_SKIPPED = 1_000_000
"""If so many samples of a stream are skipped from its begin on, all are taken to be."""


@dataclass(frozen=True)
class Batch:
    """One rank's share of one step: one micro-batch per gradient-accumulation round."""

    step: int
    """Number of the step, counted from 1."""
    rounds: list[MicroBatch]
    upcoming: Mapping[int, list[MicroBatch]] = field(default_factory=dict)
    """The rounds of the next steps, by step, as far as they were asked for."""
    of_partner: list[MicroBatch] = field(default_factory=list)
    """In a step that is audited, the rounds of the rank that this rank recomputes."""


@dataclass(frozen=True)
class LoadFailure:
    """The text of an error in a worker process, sent instead of a batch.

    DataLoader would wrap an exception and lose its type and its cause.
    """

    text: str


@dataclass(frozen=True)
class Reader:
    """Reads samples of one dataset, each with its own random seed, and collates them into micro-batches."""

    dataset: Dataset
    seed: int
    collate: Collate | None = None
    """The user's collate function; None is torch's `default_collate`."""
    _first: list[Any] = field(default_factory=list, compare=False, repr=False)
    """A sample that is not skipped, once there was one."""

    def batch(self, samples: Iterable[Sample], replaces_skipped: bool = False) -> MicroBatch:
        """Read and collate the samples in this process, and restore the state of its random generators.

        `replaces_skipped`: take another sample for each that is skipped, for a trial that needs so many.
        """
        with preserve_rng_state():
            return self._batch(samples, replaces_skipped)

    def sample(self, sample: Sample, seeded_as: Sample | None = None) -> Any:
        """Read one sample in this process, as it is before it is collated, or `SKIPPED`.

        `seeded_as`: the sample whose random seed it gets; None for its own.
        """
        with preserve_rng_state(), _counters_kept(self.dataset):
            return self._read(sample, seeded_as)

    def verify(self) -> None:
        """Refuse files that are not as their index says."""
        if isinstance(self.dataset, Source):
            self.dataset.verify()

    def open(self, sample_groups: Iterable[Iterable[Sample]], workers: Workers | int) -> "MicroBatches":
        """Iterate over one micro-batch per group of samples, read ahead by processes, or here if there are none."""
        return MicroBatches(self, sample_groups, Workers.of(workers))

    def __getitems__(self, samples: Iterable[Sample]) -> MicroBatch | LoadFailure:
        """Read and collate one micro-batch; DataLoader's worker processes call this method."""
        try:
            return self._batch(samples)
        except OnecurveError as error:
            return LoadFailure(full_text(error))

    def _batch(self, samples: Iterable[Sample], replaces_skipped: bool = False) -> MicroBatch:
        watch = LoadWatch()
        values = [self._read(sample) for sample in samples]
        if replaces_skipped:
            values = [self._first_sample() if value is SKIPPED else value for value in values]
        kept = [value for value in values if value is not SKIPPED]
        skipped = len(values) - len(kept)
        if kept:
            self._first[:] = self._first or kept[:1]
            return replace(self._collate(kept), skipped=skipped, load=watch.time())
        filler = self._collate([self._first_sample()])
        return replace(filler, samples=0, skipped=skipped, load=watch.time())

    def _first_sample(self) -> Any:
        """One that is not skipped: it takes the place of others where there must be one."""
        is_stream = isinstance(self.dataset, Source) and not self.dataset.has_end
        for index in range(_MAX_SKIPPED if is_stream else len(self.dataset)) if not self._first else ():
            value = self._read(Sample(0, WHOLE, index))
            if value is not SKIPPED:
                self._first.append(value)
                break
        if not self._first:
            raise OnecurveError("data: all samples are skipped: each of them is bad, or dropped by a filter")
        return self._first[0]

    def _read(self, sample: Sample, seeded_as: Sample | None = None) -> Any:
        by_piece = isinstance(self.dataset, Source) and sample.file != WHOLE
        seeded = seeded_as or sample
        seed_all(mix(self.seed, seeded.epoch, *((seeded.file,) if by_piece else ()), seeded.offset))
        try:
            if not isinstance(self.dataset, Source):
                return self.dataset[sample.offset]
            return self.dataset.read(sample.file, sample.offset) if by_piece else self.dataset.read_at(sample.offset)
        except OnecurveError:  # it has a message for the user
            raise
        except Exception as error:
            what = f"sample {sample.offset} of piece {sample.file}" if by_piece else f"dataset[{sample.offset}]"
            raise UserCodeError(f"data: {what} raised {type(error).__name__}: {error}") from error

    def _collate(self, samples: list[Any]) -> MicroBatch:
        collate = self.collate or default_collate
        try:
            collated = collate(samples)
        except Exception as error:
            fix = "" if self.collate else "; samples of different sizes need a collate function: Job(collate=…)"
            raise UserCodeError(
                f"data: collating {len(samples)} samples raised {type(error).__name__}: {error}{fix}"
            ) from error
        return as_micro_batch(collated, len(samples))


class MicroBatches:
    """Iterates over micro-batches, with worker processes that start in the constructor and are reused.

    Build all of them before the process has threads and before it uses an accelerator: the workers are forked. A lock
    that another thread holds at that moment stays locked in the child forever. Ranks that forked new workers for every
    evaluation hung about once in some hundred evaluations.
    """

    def __init__(self, reader: Reader, sample_groups: Iterable[Iterable[Sample]], workers: Workers) -> None:
        """`sample_groups` is iterated over again for each iteration over the micro-batches."""
        self._reader, self._sample_groups = reader, sample_groups
        self._loader: LateLoader | None = None
        self._read_ahead: Iterator[Any] | None = None
        if workers.most:
            self._loader = LateLoader(
                reader,
                batch_sampler=sample_groups,
                num_workers=workers.most,
                collate_fn=_identity,
                worker_init_fn=partial(_init_worker, os.getpid()),
                pins=torch.accelerator.is_available(),
                active=workers.first,
            )
            others = multiprocessing.active_children()
            iterator = self._loader.fork()
            processes = [new for new in multiprocessing.active_children() if new not in others]
            end = weakref.finalize(iterator, _end_workers, os.getpid(), processes)
            end.atexit = False  # it might come after Python's own cleanup, which waits for the workers
            atexit.register(end)

    def read_ahead(self) -> None:
        """Read the first micro-batches from now on. This starts threads."""
        if self._loader is not None:
            self._read_ahead = iter(self._loader)

    def rewind(self) -> None:
        """Drop the batches that were read ahead, because the sample groups have changed."""
        self._read_ahead = None

    def __iter__(self) -> Iterator[MicroBatch]:
        if self._loader is None:
            return map(self._reader.batch, self._sample_groups)
        batches, self._read_ahead = self._read_ahead, None
        return map(self._received, iter(self._loader) if batches is None else batches)

    def set_active(self, processes: int) -> None:
        """Let so many of the processes work."""
        if self._loader is not None:
            self._loader.active = processes

    def _received(self, micro: MicroBatch | LoadFailure) -> MicroBatch:
        assert self._loader is not None
        if isinstance(micro, LoadFailure):
            raise UserCodeError(micro.text)
        if self._loader.batch_bytes is None:
            tensors = [leaf for leaf in tree_leaves((micro.inputs, micro.target)) if isinstance(leaf, torch.Tensor)]
            self._loader.batch_bytes = sum(tensor.nbytes for tensor in tensors)
        return micro


class TrainingBatches:
    """This rank's batches in the order of steps. `start` moves to any step and keeps the worker processes."""

    def __init__(
        self,
        reader: Reader,
        order: Order,
        plan: Plan,
        data_rank: int,
        steps: int,
        workers: Workers | int,
        ahead: int = 0,
        audit: int | None = None,
    ) -> None:
        """`ahead`: each batch has the rounds of so many next steps, the last one too: a run may be continued. `audit`:
        in one of so many steps, another rank's rounds are read too."""
        self._shares = TrainingShares(
            order=order, plan=plan, data_rank=data_rank, steps=steps, ahead=ahead, audit=audit
        )
        self._micro_batches = reader.open(self._shares, workers)
        self._pace = LoaderPace(Workers.of(workers))
        self.on_position: Callable[[int], None] = lambda _: None
        """Told the position of each step, before it."""

    @property
    def processes(self) -> int:
        """Loader processes that work now."""
        return self._pace.processes

    def read_ahead(self) -> None:
        """Read the first batches from now on. This starts threads."""
        self._micro_batches.read_ahead()

    def assign(self, plan: Plan, data_rank: int) -> None:
        """Read the shares of another plan or rank from now on, from the first step unless `start` is called."""
        self._shares.plan, self._shares.data_rank, self._shares.next_rank = plan, data_rank, None
        self.start(0, 0, self._shares.steps)

    @property
    def partner(self) -> int | None:
        """The data-parallel rank whose rounds are read too in some steps; None if none is."""
        return self._shares.partner

    def set_partner(self, data_rank: int) -> None:
        """Read the rounds of this rank in the steps that are audited, from the first step on."""
        if self._shares.next_rank != data_rank:
            self._shares.next_rank = data_rank
            self._micro_batches.rewind()

    @property
    def first_step(self) -> int:
        """The first step that is read."""
        return self._shares.step + 1

    def start(self, step: int, position: int, steps: int) -> None:
        """Continue after `step` steps, with the sample at this position of the order, up to step `steps`."""
        self._shares.step, self._shares.position, self._shares.steps = step, position, steps
        self._micro_batches.rewind()

    def __iter__(self) -> Iterator[Batch]:
        shares, micro_batches = self._shares, iter(self._micro_batches)
        read: dict[int, list[MicroBatch]] = {}
        of_partner: dict[int, list[MicroBatch]] = {}
        last = time.perf_counter()
        for number, step in enumerate(range(shares.step + 1, shares.steps + 1)):
            self.on_position(shares.position + number * shares.plan.global_batch)
            begin = time.perf_counter()
            for later in range(max([step - 1, *read]) + 1, step + shares.ahead + 1):
                read[later] = [next(micro_batches) for _ in range(shares.plan.rounds)]
                _refuse_skipped(shares.plan, read[later])
                if shares.reads_partner(later):
                    of_partner[later] = [next(micro_batches) for _ in range(shares.plan.rounds)]
            now = time.perf_counter()
            self._pace.add(now - begin, now - last)
            self._micro_batches.set_active(self._pace.processes)
            last = now
            yield Batch(step, read.pop(step), dict(read), of_partner.pop(step, []))


def _refuse_skipped(plan: Plan, rounds: Sequence[MicroBatch]) -> None:
    if plan.mesh.pipeline > 1 and any(micro.skipped for micro in rounds):
        raise OnecurveError(
            f"plan {plan}: a sample was skipped, but the micro-batches of a pipeline must all have one size; use a "
            "plan without 'pipeline', or data without bad samples and filters"
        )


def _identity(micro: Any) -> Any:
    return micro


_END_SIGNAL = signal.SIGRTMIN + 3
"""Ends a worker; nobody else sends it."""


def _end_workers(rank_pid: int, workers: Sequence[BaseProcess]) -> None:
    """End the workers of a loader that is no longer used, or of a rank that ends. Only the rank itself does so, not a
    process that was forked from it and has a copy of the loader.

    Python would ask them with SIGTERM, which they ignore, and wait. torch sends a message, which is lost if the garbage
    collector has closed the queue before, and waits five seconds for each.
    """
    for worker in workers if os.getpid() == rank_pid else ():
        if worker.is_alive() and worker.pid is not None:
            os.kill(worker.pid, _END_SIGNAL)


def _init_worker(rank_pid: int, _: int) -> None:
    """Let a worker process live exactly as long as its rank.

    The rank decides when to stop. A signal of a terminal or of Slurm reaches every process and must not end the
    workers; the end of the rank must.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    signal.signal(_END_SIGNAL, lambda *_: os._exit(0))  # torch reports another status as a failure
    die_with_parent(rank_pid)
    set_process_name("oc-loader")
    torch.set_num_threads(1)
    unpin_cores()


@contextmanager
def _counters_kept(dataset: Any) -> Iterator[None]:
    """Context manager that restores the numbers and texts in the attributes of a dataset: reading a sample to look at
    it is none of the training's reads."""
    before = []
    while (attributes := getattr(dataset, "__dict__", None)) is not None:
        numbers = {name: value for name, value in attributes.items() if isinstance(value, int | float | str)}
        before.append((attributes, numbers))
        dataset = attributes.get("dataset")  # of which a Subset shows a part
    try:
        yield
    finally:
        for attributes, numbers in before:
            attributes.update({name: value for name, value in numbers.items() if attributes.get(name) is not value})
