"""The best plans of a space, found without looking at all of it.

Cores are looked at in the order of a bound: what no plan of theirs can be faster than. All terms of a step's time are
sums of things that take time, so what computing takes by itself bounds the step from below; and a rank holds at least
its shard of the state and what full recomputation keeps. A core, or a way, whose bounds are no better than what has
been found is left out: it cannot hold a better plan. Tested against looking at every plan.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from onecurve.describe.mesh import AXES
from onecurve.describe.plan import Plan
from onecurve.predict.collective import DATA
from onecurve.predict.forecast import Forecast
from onecurve.search.space import Space

_COMPUTING = ("forward", "backward", "tensor", "host")
_OPEN = ("data", "update", "shard", "loading")
"""Terms that depend on what is sharded, or grow less when others grow."""
Family = frozenset[str]
"""The axes that a plan splits along."""
_DATA = (["replicate"], ["shard"], ["replicate", "shard"])
_CLOSE = 1.02


@dataclass(frozen=True)
class Found:
    """A plan and what it takes."""

    plan: Plan
    step: float
    used: float
    available: float

    @property
    def fits(self) -> bool:
        return self.used <= self.available

    @property
    def work(self) -> float:
        """Device-seconds: what is paid for."""
        return self.step * self.plan.mesh.size

    def beats(self, step: float, used: float, work: float, by: float = 1.0) -> bool:
        return self.step <= step * by and self.used <= used * by and self.work <= work * by


@dataclass
class Result:
    best: Found | None = None
    families: dict[Family, Found] = field(default_factory=dict)
    """The best of each, or one that is close to it; where none fits, the one that takes least memory."""
    frontier: list[Found] = field(default_factory=list)
    """Plans that fit, fastest first: each takes less memory, or fewer device-seconds, than all that are faster."""
    looked_at: int = 0


def family(plan: Plan) -> Family:
    return frozenset(axis for axis in AXES if plan.mesh.degrees[axis] > 1)


class Search:
    """`near`: plans that differ by less than this part count as alike on the frontier; the best is exact."""

    def __init__(self, space: Space, near: float = 0.2) -> None:
        self._space, self._forecast, self._near = space, space.forecast, 1 + near
        profiles = [trace.few for trace in space.costs.traces.values()]
        # Whether modules ask all data ranks for something, of which a pipeline has fewer than its flat likeness.
        self._asks = any(
            sent.axis == DATA for each in profiles for module in each.modules for sent in module.work.collectives
        )
        self.result = Result()

    def run(self) -> Result:
        cores = sorted((self._least_of_core(core), number, core) for number, core in enumerate(self._space.cores()))
        for bound, _, core in cores:
            if self._may_matter(core, bound, *self._least_of_ways(core)):
                for way in self._space.ways(core):
                    if self._may_matter(way, self._least_of_way(way), *self._least_memory(way)):
                        self._look_at(self._space.shardings(way))
        found = self.result
        if found.best is not None:
            found.frontier = frontier([found.best, *found.frontier], self._near)
        return found

    def _look_at(self, plans: Iterable[Plan]) -> None:
        for plan in plans:
            found = look(self._forecast, plan)
            self.result.looked_at += 1
            self._note(found)

    def _note(self, found: Found) -> None:
        result, kind = self.result, family(found.plan)
        before = result.families.get(kind)
        if before is None or _rank(found) < _rank(before):
            result.families[kind] = found
        if not found.fits:
            return
        if result.best is None or _rank(found) < _rank(result.best):
            result.best = found
        if not any(each.beats(found.step, found.used, found.work, self._near) for each in result.frontier):
            result.frontier.append(found)

    def _may_matter(self, way: Plan, step: float, whole: float, sharded: float) -> bool:
        """Whether a sharding of this way, which takes so long and so much at least, could be the best of its family, or
        on the frontier."""
        available = self._forecast.available(way)
        model = family(way) - {"replicate"}
        data: list[tuple[Family, float]] = [(frozenset(), whole)]
        if way.mesh.data > 1:
            data = [(frozenset(axes), whole if axes == ["replicate"] else sharded) for axes in _DATA]
        least = min(whole, sharded)
        best = self.result.best
        if least <= available and (best is None or step < best.step):
            return True
        for axes, used in data:
            before = self.result.families.get(model | axes)
            if before is None or _could_be_better(before, step * _CLOSE, used * _CLOSE, available):
                return True
        work = step * way.mesh.size
        near = self._near
        return least <= available and not any(each.beats(step, least, work, near) for each in self.result.frontier)

    def _least_of_core(self, core: Plan) -> float:
        """Seconds that no plan of this core can undercut: its computing, spread over the stages without a rest."""
        stages, shares = core.mesh.pipeline, core.micro_batch
        if stages == 1:
            terms = self._forecast.seconds(core)
            return sum(terms[name] for name in _COMPUTING) + terms["other"]
        mesh = replace(core.mesh, pipeline=1, replicate=stages * core.mesh.replicate)
        least = min(shares) if isinstance(shares, tuple) else shares
        terms = self._forecast.seconds(replace(core, mesh=mesh, micro_batch=least))
        computing = _COMPUTING[:2] if self._asks else _COMPUTING
        return sum(terms[name] for name in computing) / stages + terms["other"]

    def _least_of_ways(self, core: Plan) -> tuple[float, float]:
        """Bytes that no plan of this core can undercut. Selective recomputation keeps no less than the full one."""
        ways = [each for each in self._space.recomputations if each != "selective"]
        found = [self._least_memory(replace(core, recompute=each)) for each in ways]
        return min(whole for whole, _ in found), min(sharded for _, sharded in found)

    def _least_of_way(self, way: Plan) -> float:
        terms = self._forecast.seconds(way)
        return sum(value for name, value in terms.items() if name not in _OPEN)

    def _least_memory(self, way: Plan) -> tuple[float, float]:
        """Bytes that no sharding of this way can undercut: none, and of everything with nothing gathered."""
        whole = sum(self._forecast.memory(way).values())
        if way.mesh.data == 1:
            return whole, whole
        mesh = replace(way.mesh, replicate=1, shard=way.mesh.data)
        found = self._forecast.memory(replace(way, mesh=mesh, reduce="round"))
        return whole, sum(found.values()) - found["gathered"]


def _could_be_better(before: Found, step: float, used: float, available: float) -> bool:
    if before.fits:
        return step < before.step and used <= available * _CLOSE
    return used <= available * _CLOSE or used < before.used


def look(forecast: Forecast, plan: Plan) -> Found:
    return Found(
        plan, sum(forecast.seconds(plan).values()), sum(forecast.memory(plan).values()), forecast.available(plan)
    )


def frontier(plans: Iterable[Found], near: float) -> list[Found]:
    """Fastest first."""
    found: list[Found] = []
    for each in sorted(plans, key=lambda each: each.step):
        if not any(other.beats(each.step, each.used, each.work, near) for other in found):
            found.append(each)
    return found


def _rank(found: Found) -> tuple[bool, float, float]:
    """What fits comes first, then what is faster, then what takes less; of what does not fit, what takes less."""
    return (False, found.step, found.used) if found.fits else (True, found.used, found.step)
