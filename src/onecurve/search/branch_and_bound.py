"""The best plans of a space, found without looking at all of it.

Cores are looked at in the order of a bound: what no plan of theirs can be faster than. All terms of a step's time are
sums of things that take time, so what computing takes by itself bounds the step from below; and a rank holds at least
its shard of the state and what full recomputation keeps. A core, or a way, whose bounds are no better than what has
been found is left out: it cannot hold a better plan. Tested against looking at every plan.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from onecurve.describe.plan import Plan
from onecurve.search.space import Space

_OPEN = ("replicate", "update", "shard", "data")
"""Terms that depend on what is sharded, or grow less when others grow."""
Family = frozenset[str]
"""The axes that a plan splits along."""
_WHOLE = (frozenset[str](),)
_DATA = (frozenset({"replicate"}), frozenset({"shard"}), frozenset({"replicate", "shard"}))
_CLOSE = 1.02
TOO_SLOW = 4.0
"""Times as slow as the best: that nobody takes for less memory or money."""


@dataclass(frozen=True)
class Candidate:
    """A plan and what it takes."""

    plan: Plan
    step: float
    memory_bytes: float
    available_bytes: float
    devices_paid: int
    """Devices, or hosts."""

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.available_bytes

    @property
    def work(self) -> float:
        """What is paid for: devices, or hosts, times seconds."""
        return self.step * self.devices_paid

    def beats(self, step: float, used: float, work: float, by: float = 1.0) -> bool:
        return self.step <= step * by and self.memory_bytes <= used * by and self.work <= work * by


@dataclass
class SearchResult:
    best: Candidate | None = None
    families: dict[Family, Candidate] = field(default_factory=dict)
    """The best of each, or one that is close to it; where none fits, the one that takes least memory."""
    frontier: list[Candidate] = field(default_factory=list)
    """Plans that fit, fastest first: each takes less memory, or fewer device-seconds, than all that are faster."""
    looked_at: int = 0


def family(plan: Plan) -> Family:
    return frozenset(axis for axis, degree in plan.mesh.degrees.items() if degree > 1)


class BranchAndBound:
    """`near`: plans that differ by less than this part count as alike on the frontier; the best is exact."""

    def __init__(self, space: Space, near: float = 0.2) -> None:
        self._space, self._estimator, self._near = space, space.estimator, 1 + near
        self.result = SearchResult()

    def run(self) -> SearchResult:
        cores = sorted(
            (self._estimator.computing(core), number, core) for number, core in enumerate(self._space.cores())
        )
        for bound, _, core in cores:
            if self._may_matter(core, bound, self._least_of_ways):
                for way in self._space.ways(core):
                    least = self._least_of_way(way)
                    if self._may_matter(way, least, self._least_memory):
                        self._look_at(self._space.shardings(way), least)
        found = self.result
        if found.best is not None:
            # One that is a little too slow may stand for one that is just not.
            slowest = TOO_SLOW * found.best.step * self._near
            choices = [found.best, *(each for each in found.frontier if each.step <= slowest)]
            found.frontier = frontier(choices, self._near)
        return found

    def _look_at(self, plans: Iterable[Plan], least: float) -> None:
        """`least`: seconds that none of them undercuts."""
        for plan in plans:
            used, available = sum(self._estimator.memory(plan).values()), self._estimator.available(plan)
            before = self.result.families.get(family(plan))
            if _may_be_better(before, least, used, available) or self._may_be_chosen(plan, least, used, available):
                step = sum(self._estimator.seconds(plan).values())
                self._note(Candidate(plan, step, used, available, self._estimator.taken(plan.mesh.size)))
                self.result.looked_at += 1

    def _note(self, found: Candidate) -> None:
        result, kind = self.result, family(found.plan)
        before = result.families.get(kind)
        if before is None or _rank(found) < _rank(before):
            result.families[kind] = found
        if not found.fits:
            return
        if result.best is None or _rank(found) < _rank(result.best):
            result.best = found
        if not any(each.beats(found.step, found.memory_bytes, found.work, self._near) for each in result.frontier):
            result.frontier.append(found)

    def _may_matter(self, way: Plan, step: float, memory: Callable[[Plan], tuple[float, float]]) -> bool:
        """Whether a sharding of this way, which takes so long at least, could be the best of its family, or on the
        frontier. `memory`: what it takes at least, whole and sharded; asked for where time alone does not tell."""
        best, model = self.result.best, family(way) - {"replicate"}
        rivals = {axes: self.result.families.get(model | axes) for axes in (_DATA if way.mesh.data > 1 else _WHOLE)}
        worth = best is None or step <= TOO_SLOW * best.step
        if not worth and not any(_may_be_better(each, step, 0.0, 0.0) for each in rivals.values()):
            return False
        whole, sharded = memory(way)
        available = self._estimator.available(way)
        return any(
            _may_be_better(each, step, sharded if "shard" in axes else whole, available)
            for axes, each in rivals.items()
        ) or self._may_be_chosen(way, step, min(whole, sharded), available)

    def _may_be_chosen(self, plan: Plan, step: float, used: float, available: float) -> bool:
        """Whether a plan that takes so much at least could be the best, or on the frontier."""
        best = self.result.best
        if used > available or (best is not None and step > TOO_SLOW * best.step):
            return False
        if best is None or step < best.step:
            return True
        work, near = step * self._estimator.taken(plan.mesh.size), self._near
        return not any(each.beats(step, used, work, near) for each in self.result.frontier)

    def _least_of_ways(self, core: Plan) -> tuple[float, float]:
        """Bytes that no plan of this core can undercut. Selective recomputation keeps no less than the full one. Of
        unlike blocks stages may be made in many ways: nothing is known before they are."""
        if core.mesh.pipeline > 1 and len(set(self._space.costs.block_chain.kinds)) > 1:
            return 0.0, 0.0
        ways = [each for each in self._space.recomputations if each != "selective"]
        found = [self._least_memory(core.replace_unchecked(recompute=each)) for each in ways]
        return min(whole for whole, _ in found), min(sharded for _, sharded in found)

    def _least_of_way(self, way: Plan) -> float:
        terms = self._estimator.seconds(way)
        return sum(value for name, value in terms.items() if name not in _OPEN)

    def _least_memory(self, way: Plan) -> tuple[float, float]:
        """Bytes that no sharding of this way can undercut: none, and of everything with nothing gathered."""
        whole = sum(self._estimator.memory(way).values())
        if way.mesh.data == 1:
            return whole, whole
        mesh = replace(way.mesh, replicate=1, shard=way.mesh.data)
        found = self._estimator.memory(way.replace_unchecked(mesh=mesh, reduce="round"))
        return whole, sum(found.values()) - found["gathered"]


def _may_be_better(before: Candidate | None, step: float, used: float, available: float) -> bool:
    """Whether a plan that takes so much at least could be noticeably better than the one before."""
    if before is None:
        return True
    if before.fits:
        return step * _CLOSE < before.step and used <= available
    return used <= available or used * _CLOSE < before.memory_bytes


def frontier(plans: Iterable[Candidate], near: float) -> list[Candidate]:
    """Fastest first."""
    found: list[Candidate] = []
    for each in sorted(plans, key=lambda each: each.step):
        if not any(other.beats(each.step, each.memory_bytes, each.work, near) for other in found):
            found.append(each)
    return found


def _rank(found: Candidate) -> tuple[bool, float, float]:
    """What fits comes first, then what is faster, then what takes less; of what does not fit, what takes less."""
    return (False, found.step, found.memory_bytes) if found.fits else (True, found.memory_bytes, found.step)
