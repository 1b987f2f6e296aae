"""This rank's share of an evaluation."""

from collections.abc import Iterator
from dataclasses import dataclass

from onecurve.data.loader import Reader
from onecurve.data.order import WHOLE, Sample
from onecurve.describe.plan import Plan
from onecurve.job.batch import MicroBatch


class EvaluationBatches:
    """This rank's micro-batches of an evaluation; it can be iterated over any number of times.

    Over all ranks every sample occurs once. All ranks get the same number of micro-batches: a rank that has no sample
    left gets filler batches, so that it can take part in the collectives.
    """

    def __init__(self, reader: Reader, plan: Plan, data_rank: int, workers: int) -> None:
        self.reader = reader
        self._shares = _EvaluationShares(len(reader.dataset), plan.round_size, plan.share(data_rank))
        self._micro_batches = reader.open(self._shares, workers)

    def assign(self, plan: Plan, data_rank: int) -> None:
        """Read the shares of another plan or rank from now on."""
        self._shares.round_size, self._shares.share = plan.round_size, plan.share(data_rank)
        self._micro_batches.rewind()

    def __iter__(self) -> Iterator[MicroBatch]:
        return (micro for _, micro in self.numbered())

    def numbered(self) -> Iterator[tuple[tuple[int, int], MicroBatch]]:
        """The micro-batches, with the indices [begin, end) of their samples."""
        for (begin, end), micro in zip(self._shares.bounds(), self._micro_batches, strict=True):
            yield (begin, end), micro if begin < end else MicroBatch(micro.inputs, micro.target, samples=0)


@dataclass
class _EvaluationShares:
    """The samples of this rank, one group per round of an evaluation, in proportion to its share of a training round.

    A group that would be empty has sample 0 instead, as the content of a filler batch.
    """

    size: int
    """Samples in the dataset."""
    round_size: int
    """Samples of one round, over all ranks."""
    share: tuple[int, int]
    """This rank's part [begin, end) of a full round."""

    def bounds(self) -> Iterator[tuple[int, int]]:
        """Indices [begin, end) of this rank's samples, for each round."""
        for begin in range(0, self.size, self.round_size):
            length = min(self.round_size, self.size - begin)
            first, last = (begin + length * edge // self.round_size for edge in self.share)
            yield first, last

    def __iter__(self) -> Iterator[list[Sample]]:
        for begin, end in self.bounds():
            yield [Sample(0, WHOLE, index) for index in range(begin, end)] or [Sample(0, WHOLE, 0)]
