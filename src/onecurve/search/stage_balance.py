"""The assignment of blocks to pipeline stages, such that the stages cost about the same."""

from bisect import bisect
from functools import lru_cache
from itertools import accumulate, pairwise

from onecurve.describe.costs import BlockChain, BlockWeight


@lru_cache(4096)
def balance(chain: BlockChain, stages: int) -> tuple[int, ...]:
    """Return the number of blocks of each stage (at least 1) that makes the most expensive stage as cheap as possible.

    Costs are compared by time first, then by memory. The result is exact: for a given limit, filling stages greedily
    finds a division if there is one, and the limit is lowered until there is none.
    """
    divider = _StageDivider(chain, stages)
    boundaries = [stage * len(chain.blocks) // stages for stage in range(stages + 1)]
    while (cheaper := divider.divide_below(divider.largest_cost(boundaries))) is not None:
        boundaries = cheaper
    return tuple(end - begin for begin, end in pairwise(boundaries))


class _StageDivider:
    """Divides a chain of blocks into stages. Prefix sums give the cost of a range of blocks in constant time."""

    def __init__(self, chain: BlockChain, stages: int) -> None:
        self._chain, self._stages, self._count = chain, stages, len(chain.blocks)
        self._times, self._sizes = ([0.0, *accumulate(block[n] for block in chain.blocks)] for n in (0, 1))

    def divide_below(self, limit: BlockWeight) -> list[int] | None:
        """Return stage boundaries such that each stage costs less than the limit, or None if there are none."""
        boundaries = [0]
        for stage in range(self._stages):
            begin, max_end = boundaries[-1], self._count - (self._stages - stage - 1)  # later stages need a block each
            end = self._guess_end(begin, max_end, stage, limit)
            while end < max_end and self._cost(begin, end + 1, stage) < limit:
                end += 1
            while end > begin + 1 and self._cost(begin, end, stage) >= limit:
                end -= 1
            if self._cost(begin, end, stage) >= limit:
                return None
            boundaries.append(end)
        return boundaries if boundaries[-1] == self._count else None

    def _guess_end(self, begin: int, max_end: int, stage: int, limit: BlockWeight) -> int:
        """Return about where a stage reaches the limit's time; a starting point for the exact search."""
        time_at_limit = self._times[begin] + limit[0] - self._cost(begin, begin, stage)[0]
        return min(max(begin + 1, bisect(self._times, time_at_limit) - 1), max_end)

    def largest_cost(self, boundaries: list[int]) -> BlockWeight:
        return max(self._cost(begin, end, stage) for stage, (begin, end) in enumerate(pairwise(boundaries)))

    def _cost(self, begin: int, end: int, stage: int) -> BlockWeight:
        time, size = self._times[end] - self._times[begin], self._sizes[end] - self._sizes[begin]
        if stage == 0:
            time, size = time + self._chain.first[0], size + self._chain.first[1]
        if stage == self._stages - 1:
            time, size = time + self._chain.last[0], size + self._chain.last[1]
        return time, size
