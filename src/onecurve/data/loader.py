"""This rank's share of each step, read and collated by torch's DataLoader in processes of its own, ahead of time.

A micro-batch is collated from its own samples, never cut out of a larger batch. Before `dataset[i]` the generators of
python, numpy and torch are seeded by (seed, epoch, i), so an augmentation is the same under every plan.
"""

import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.data import DataLoader, default_collate

from onecurve.data.order import Order, Sample, round_bounds
from onecurve.describe.errors import OnecurveError, UserCodeError, full_text
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix
from onecurve.device.randomness import preserved, seed_all
from onecurve.job.batch import Micro, as_micro
from onecurve.job.job import Dataset

Collate = Callable[[list[Any]], Any]


@dataclass(frozen=True)
class Batch:
    """One rank's share of one step: a micro-batch per round."""

    step: int
    rounds: list[Micro]


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

    def batch(self, samples: Sequence[Sample]) -> Micro:
        """Read and collate in this process, leaving its generators alone."""
        with preserved():
            return self._collate([self._read(sample) for sample in samples])

    def batches(self, wanted: Iterable[list[Sample]], workers: int) -> Iterator[Micro]:
        """One micro-batch per list of samples, read ahead by `workers` processes."""
        if workers == 0:
            yield from map(self.batch, wanted)
            return
        loader: DataLoader[Any] = DataLoader(
            self,  # type: ignore[arg-type]
            batch_sampler=wanted,
            num_workers=workers,
            collate_fn=_as_it_is,
            worker_init_fn=_become_worker,
        )
        for micro in loader:
            if isinstance(micro, LoadFailure):
                raise UserCodeError(micro.text)
            yield micro

    def __getitems__(self, samples: list[Sample]) -> Micro | LoadFailure:
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

    def _collate(self, samples: list[Any]) -> Micro:
        collate = self.collate or default_collate
        try:
            collated = collate(samples)
        except Exception as error:
            mend = "" if self.collate else "; samples of unequal sizes need a function of your own: Job(collate=…)"
            raise UserCodeError(
                f"data: collating {len(samples)} samples raised {type(error).__name__}: {error}{mend}"
            ) from error
        return as_micro(collated, len(samples))


def training_batches(
    reader: Reader, order: Order, plan: Plan, data_rank: int, steps: range, position: int, workers: int
) -> Iterator[Batch]:
    """This rank's batches for `steps`, the first of which begins at `position` of the order."""

    def wanted() -> Iterator[list[Sample]]:
        begin = position
        for _ in steps:
            for number in range(plan.rounds):
                yield order.samples(*share_bounds(plan, data_rank, begin, number))
            begin += plan.global_batch

    micros = reader.batches(wanted(), workers)
    for step in steps:
        yield Batch(step, [next(micros) for _ in range(plan.rounds)])


def share_bounds(plan: Plan, data_rank: int, position: int, number: int) -> tuple[int, int]:
    """The positions that a data-parallel rank takes of round `number` of the step that begins at `position`."""
    begin, _ = round_bounds(position, plan.global_batch, plan.rounds, number)
    first, last = plan.share(data_rank)
    return begin + first, begin + last


def evaluation_batches(reader: Reader, plan: Plan, data_rank: int, workers: int) -> Iterator[Micro]:
    """Every sample once over all ranks, as many batches on each rank; where a rank has no sample left it gets a
    filler, so that it can join the others' collectives."""
    size = len(reader.dataset)

    def bounds() -> Iterator[tuple[int, int]]:
        for begin in range(0, size, plan.round_size):
            length = min(plan.round_size, size - begin)
            yield tuple(begin + length * edge // plan.round_size for edge in plan.share(data_rank))  # type: ignore[misc]

    wanted = ([Sample(0, 0, index) for index in range(*bound)] or [Sample(0, 0, 0)] for bound in bounds())
    for (begin, end), micro in zip(bounds(), reader.batches(wanted, workers), strict=True):
        yield micro if begin < end else Micro(micro.inputs, micro.target, samples=0)


def _as_it_is(micro: Any) -> Any:
    return micro


def _become_worker(_: int) -> None:
    """The rank decides when to stop; a Ctrl-C that reaches its whole process group must not take its workers away."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
