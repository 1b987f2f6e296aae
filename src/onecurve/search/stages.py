"""Which blocks make up a pipeline stage: stages of equal cost, as far as blocks can be spread so."""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate, pairwise

Cost = tuple[float, float]


def balance(costs: Sequence[Cost], stages: int, first: Cost = (0, 0), last: Cost = (0, 0)) -> tuple[int, ...]:
    """The number of blocks in each stage, at least one: the dearest stage costs as little as possible.

    A cost is (time, memory), compared in this order; `first` and `last` are what the first and the last stage do beside
    their blocks. Exact: every way to spread the blocks is considered, by way of the best of shorter pipelines.
    """
    count = len(costs)
    times, sizes = ([0.0, *accumulate(each[n] for each in costs)] for n in (0, 1))

    def cost(begin: int, end: int, stage: int) -> Cost:
        beside = [each for each, here in ((first, stage == 0), (last, stage == stages - 1)) if here]
        return (
            times[end] - times[begin] + sum(each[0] for each in beside),
            sizes[end] - sizes[begin] + sum(each[1] for each in beside),
        )

    @cache
    def best(stage: int, begin: int) -> tuple[Cost, int]:
        """From this stage on: the dearest stage, and where this one ends."""
        if stage == stages - 1:
            return cost(begin, count, stage), count
        found: tuple[Cost, int] | None = None
        for end in range(begin + 1, count - (stages - stage - 1) + 1):
            own = cost(begin, end, stage)
            if found is not None and own >= found[0]:  # a longer stage costs no less
                break
            way = max(own, best(stage + 1, end)[0]), end
            found = way if found is None else min(found, way)
        assert found is not None
        return found

    ends = [0]
    for stage in range(stages):
        ends.append(best(stage, ends[-1])[1])
    return tuple(end - begin for begin, end in pairwise(ends))
