"""This rank's share of each step, read and collated by torch's DataLoader in processes of its own, ahead of time.

A micro-batch is collated from its own samples, never cut out of a larger batch. Before `dataset[i]` the generators of
python, numpy and torch are seeded by (seed, epoch, i), so an augmentation is the same under every plan.
"""

import ctypes
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from onecurve.data.order import Order, Sample, Samples, round_bounds
from onecurve.describe.errors import OnecurveError, UserCodeError, full_text
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.cores import unpin_cores
from onecurve.device.rng import preserve_rng_state, seed_all
from onecurve.job.batch import MicroBatch, as_micro_batch
from onecurve.job.job import Dataset

_DIE_WITH_PARENT = 1  # Linux: PR_SET_PDEATHSIG

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Batch:
    """One rank's share of one step: a micro-batch per round."""

    step: int
    rounds: list[MicroBatch]


@dataclass(frozen=True)
class LoadFailure:
    """What a loader process sends instead of a batch: an exception would reach the rank wrapped beyond recognition."""

    text: str


@dataclass(frozen=True)
class Reader:
    """Samples of one dataset, each read with its own seed, and batches of them."""

    dataset: Dataset
    seed: int
    collate: Collate | None = None

    def batch(self, samples: Iterable[Sample]) -> MicroBatch:
        """Read and collate in this process, leaving its generators alone."""
        with preserve_rng_state():
            return self._collate([self._read(sample) for sample in samples])

    def open(self, wanted: Iterable[Iterable[Sample]], workers: int) -> "MicroBatches":
        """One micro-batch per group of samples, read ahead by `workers` processes."""
        return MicroBatches(self, wanted, workers)

    def __getitems__(self, samples: Iterable[Sample]) -> MicroBatch | LoadFailure:
        """What a loader process calls: a whole micro-batch at once."""
        try:
            return self._collate([self._read(sample) for sample in samples])
        except OnecurveError as error:
            return LoadFailure(full_text(error))

    def _read(self, sample: Sample) -> Any:
        seed_all(mix(self.seed, sample.epoch, sample.offset))
        try:
            return self.dataset[sample.offset]
        except Exception as error:
            raise UserCodeError(f"data: dataset[{sample.offset}] raised {type(error).__name__}: {error}") from error

    def _collate(self, samples: list[Any]) -> MicroBatch:
        collate = self.collate or default_collate
        try:
            collated = collate(samples)
        except Exception as error:
            mend = "" if self.collate else "; samples of unequal sizes need a function of your own: Job(collate=…)"
            raise UserCodeError(
                f"data: collating {len(samples)} samples raised {type(error).__name__}: {error}{mend}"
            ) from error
        return as_micro_batch(collated, len(samples))


class MicroBatches:
    """Micro-batches of a reader, in processes that are started at once and kept.

    A process that runs threads must not fork: a lock that another thread holds at that moment stays locked in the child
    for ever. So open what you will need before the process group is joined and the model computes; ranks that forked
    for every evaluation hung once in some hundred times.
    """

    def __init__(self, reader: Reader, wanted: Iterable[Iterable[Sample]], workers: int) -> None:
        """`wanted` is gone through once for each time the batches are."""
        self._reader, self._wanted = reader, wanted
        self._loader: DataLoader[Any] | None = None
        self._first: Iterator[Any] | None = None
        if workers:
            self._loader = DataLoader(
                reader,  # type: ignore[arg-type]
                batch_sampler=wanted,  # type: ignore[arg-type]
                num_workers=workers,
                persistent_workers=True,
                collate_fn=_as_it_is,
                worker_init_fn=partial(_become_worker, os.getpid()),
                pin_memory=torch.accelerator.is_available(),  # for copies that the device makes by itself
            )
            self._first = iter(self._loader)

    def rewind(self) -> None:
        """What was read ahead is dropped: what is wanted has changed."""
        self._first = None

    def __iter__(self) -> Iterator[MicroBatch]:
        if self._loader is None:
            return map(self._reader.batch, self._wanted)
        batches, self._first = self._first, None
        return map(_checked, iter(self._loader) if batches is None else batches)


class TrainingBatches:
    """This rank's batches step by step, from any step on; the processes that read them stay the same."""

    def __init__(self, reader: Reader, order: Order, plan: Plan, data_rank: int, steps: int, workers: int) -> None:
        self._wanted = _Shares(order, plan, data_rank, steps)
        self._micro_batches = reader.open(self._wanted, workers)

    def start(self, step: int, position: int) -> None:
        """Begin with this step, at this position of the order."""
        self._wanted.step, self._wanted.position = step, position
        self._micro_batches.rewind()

    def __iter__(self) -> Iterator[Batch]:
        wanted, micro_batches = self._wanted, iter(self._micro_batches)
        return (
            Batch(step, [next(micro_batches) for _ in range(wanted.plan.rounds)])
            for step in range(wanted.step, wanted.steps)
        )


@dataclass
class _Shares:
    """What a rank takes of every round, from a step on."""

    order: Order
    plan: Plan
    data_rank: int
    steps: int
    step: int = 0
    position: int = 0

    def __iter__(self) -> Iterator[Samples]:
        begin = self.position
        for _ in range(self.step, self.steps):
            for number in range(self.plan.rounds):
                yield self.order.samples(*share_bounds(self.plan, self.data_rank, begin, number))
            begin += self.plan.global_batch


def share_bounds(plan: Plan, data_rank: int, position: int, number: int) -> tuple[int, int]:
    """The positions that a data-parallel rank takes of round `number` of the step that begins at `position`."""
    begin, _ = round_bounds(position, plan.global_batch, plan.rounds, number)
    first, last = plan.share(data_rank)
    return begin + first, begin + last


class EvaluationBatches:
    """Every sample once over all ranks, as many batches on each rank; where a rank has no sample left it gets a filler,
    so that it can join the others' collectives. Can be gone through again and again."""

    def __init__(self, reader: Reader, plan: Plan, data_rank: int, workers: int) -> None:
        self._bounds = _Bounds(len(reader.dataset), plan.round_size, plan.share(data_rank))
        self._batches = reader.open(self._bounds, workers)

    def __iter__(self) -> Iterator[MicroBatch]:
        for (begin, end), micro in zip(self._bounds.pairs(), self._batches, strict=True):
            yield micro if begin < end else MicroBatch(micro.inputs, micro.target, samples=0)


@dataclass(frozen=True)
class _Bounds:
    """A rank's part of each round of an evaluation, in proportion to its share."""

    size: int
    round_size: int
    share: tuple[int, int]

    def pairs(self) -> Iterator[tuple[int, int]]:
        for begin in range(0, self.size, self.round_size):
            length = min(self.round_size, self.size - begin)
            first, last = (begin + length * edge // self.round_size for edge in self.share)
            yield first, last

    def __iter__(self) -> Iterator[list[Sample]]:
        for begin, end in self.pairs():
            yield [Sample(0, 0, index) for index in range(begin, end)] or [Sample(0, 0, 0)]


def _checked(micro: MicroBatch | LoadFailure) -> MicroBatch:
    if isinstance(micro, LoadFailure):
        raise UserCodeError(micro.text)
    return micro


def _as_it_is(micro: Any) -> Any:
    return micro


def _become_worker(rank: int, _: int) -> None:
    """The rank decides when to stop: a Ctrl-C that reaches its whole process group must not take its workers away, but
    the rank's own end must."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_DIE_WITH_PARENT, signal.SIGKILL)
    if os.getppid() != rank:  # it died before it could be said
        os._exit(1)
    torch.set_num_threads(1)
    unpin_cores()
