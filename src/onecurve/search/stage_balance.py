"""Which blocks make up a pipeline stage: stages of equal cost, as far as blocks can be spread so."""

from bisect import bisect
from functools import lru_cache
from itertools import accumulate, pairwise

from onecurve.describe.costs import BlockChain, Weight


@lru_cache(4096)
def balance(row: BlockChain, stages: int) -> tuple[int, ...]:
    """The number of blocks in each stage, at least one: the dearest stage costs as little as possible.

    Time comes before memory. Exact: stages are filled as far as a limit allows, which finds a way if there is one; and
    the limit is lowered until there is none.
    """
    spread = _Spread(row, stages)
    found = [stage * len(row.blocks) // stages for stage in range(stages + 1)]
    while (cheaper := spread.below(spread.dearest(found))) is not None:
        found = cheaper
    return tuple(end - begin for begin, end in pairwise(found))


class _Spread:
    def __init__(self, row: BlockChain, stages: int) -> None:
        self._row, self._stages, self._count = row, stages, len(row.blocks)
        self._times, self._sizes = ([0.0, *accumulate(each[n] for each in row.blocks)] for n in (0, 1))

    def below(self, limit: Weight) -> list[int] | None:
        """Where stages begin and end, such that each costs less than the limit; None where that cannot be."""
        ends = [0]
        for stage in range(self._stages):
            begin, most = ends[-1], self._count - (self._stages - stage - 1)  # a block is left for each of the others
            end = self._near(begin, most, stage, limit)
            while end < most and self._cost(begin, end + 1, stage) < limit:
                end += 1
            while end > begin + 1 and self._cost(begin, end, stage) >= limit:
                end -= 1
            if self._cost(begin, end, stage) >= limit:
                return None
            ends.append(end)
        return ends if ends[-1] == self._count else None

    def _near(self, begin: int, most: int, stage: int, limit: Weight) -> int:
        """About where a stage reaches the limit's time."""
        reached = self._times[begin] + limit[0] - self._cost(begin, begin, stage)[0]
        return min(max(begin + 1, bisect(self._times, reached) - 1), most)

    def dearest(self, ends: list[int]) -> Weight:
        return max(self._cost(begin, end, stage) for stage, (begin, end) in enumerate(pairwise(ends)))

    def _cost(self, begin: int, end: int, stage: int) -> Weight:
        time, size = self._times[end] - self._times[begin], self._sizes[end] - self._sizes[begin]
        if stage == 0:
            time, size = time + self._row.first[0], size + self._row.first[1]
        if stage == self._stages - 1:
            time, size = time + self._row.last[0], size + self._row.last[1]
        return time, size
