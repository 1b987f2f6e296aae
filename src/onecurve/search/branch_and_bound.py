"""Branch and bound: the best plans of a space, found without evaluating all of them.

Compute choices are visited in the order of a lower bound of their step time. No term of a step's time is negative, so
the compute time alone is such a bound. A lower bound of the memory is the fully sharded state plus the activations
that full recomputation saves. A compute choice or schedule choice is skipped if its bounds are no better than what has
been found. Tests compare the result with an evaluation of every plan.

Predictions do not order plans that are almost equally fast. A second pass therefore chooses the simplest plan among
those that are predicted to be about as fast as the best one.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from onecurve.describe.plan import Plan
from onecurve.search.simplicity import INDISTINGUISHABLE, complexity
from onecurve.search.space import Space

_TERMS_CHANGED_BY_SHARDING = ("replicate", "update", "shard", "data")
"""Time terms left out of a schedule choice's lower bound: sharding changes them, or they shrink when others grow."""
Family = frozenset[str]
"""The set of mesh axes that a plan uses."""
_NO_DATA_AXES = (frozenset[str](),)
_DATA_AXES = (frozenset({"replicate"}), frozenset({"shard"}), frozenset({"replicate", "shard"}))
_FAMILY_TOLERANCE = 1.02
"""A plan replaces the best of its family only if it is better by more than this factor."""
TOO_SLOW = 4.0
"""Plans slower than the best one by more than this factor are not offered, whatever memory or money they save."""


@dataclass(frozen=True)
class Candidate:
    """A plan with its predicted step time, memory and number of paid devices."""

    plan: Plan
    step: float
    """Seconds of a step."""
    memory_bytes: float
    available_bytes: float
    devices_paid: int
    """Number of accelerators, or of CPU hosts."""

    @property
    def fits(self) -> bool:
        return self.memory_bytes <= self.available_bytes

    @property
    def work(self) -> float:
        """Paid device-seconds (CPU: host-seconds) per step."""
        return self.step * self.devices_paid

    def beats(self, step: float, memory_bytes: float, work: float, tolerance: float = 1.0) -> bool:
        """Return True if this plan is no worse in time, memory and work, up to the factor `tolerance`."""
        return (
            self.step <= step * tolerance
            and self.memory_bytes <= memory_bytes * tolerance
            and self.work <= work * tolerance
        )


@dataclass
class SearchResult:
    """What the search found."""

    best: Candidate | None = None
    """The fastest plan that fits, or None if no plan fits."""
    chosen: Candidate | None = None
    """The simplest plan that fits and is about as fast as the best one; None if no plan fits."""
    families: dict[Family, Candidate] = field(default_factory=dict)
    """The best plan of each family, or one within 2 % of it. If none fits, the one that needs the least memory."""
    frontier: list[Candidate] = field(default_factory=list)
    """Plans that fit, fastest first. Each needs less memory or fewer device-seconds than all faster ones."""
    plans_evaluated: int = 0


def family(plan: Plan) -> Family:
    """Return the set of axes whose degree is above 1."""
    return frozenset(axis for axis, degree in plan.mesh.degrees.items() if degree > 1)


class BranchAndBound:
    """One search. Plans that differ by less than the fraction `near` are equal on the frontier; the best is exact."""

    def __init__(self, space: Space, near: float = 0.2) -> None:
        self._space, self._estimator, self._tolerance = space, space.estimator, 1 + near
        self.result = SearchResult()

    def run(self) -> SearchResult:
        """Search the space."""
        compute_choices = sorted(
            (self._estimator.compute_lower_bound(choice), number, choice)
            for number, choice in enumerate(self._space.compute_choices())
        )
        for compute_bound, _, compute_choice in compute_choices:
            if self._may_matter(compute_choice, compute_bound, self._memory_bounds_of_compute_choice):
                for choice in self._space.schedule_choices(compute_choice):
                    bound = self._time_bound(choice)
                    if self._may_matter(choice, bound, self._memory_bounds):
                        self._evaluate(self._space.shardings(choice), bound)
        result = self.result
        if result.best is not None:
            result.chosen = self._simplest(compute_choices, result.best)
            # The factor: a plan slightly above the limit may stand for an equal one slightly below it.
            slowest = TOO_SLOW * result.best.step * self._tolerance
            candidates = [result.best, *(candidate for candidate in result.frontier if candidate.step <= slowest)]
            result.frontier = frontier(candidates, self._tolerance)
        return result

    def _evaluate(self, plans: Iterable[Plan], bound: float) -> None:
        """Evaluate those plans that may be better. `bound` is a lower bound of their step time in seconds."""
        for plan in plans:
            memory_bytes, available = self._memory_of(plan)
            rival = self.result.families.get(family(plan))
            if _may_be_better(rival, bound, memory_bytes, available) or self._may_be_chosen(
                plan, bound, memory_bytes, available
            ):
                self._record(self._candidate(plan, memory_bytes, available))
                self.result.plans_evaluated += 1

    def _candidate(self, plan: Plan, memory_bytes: float, available: float) -> Candidate:
        step = sum(self._estimator.seconds(plan).values())
        return Candidate(plan, step, memory_bytes, available, self._estimator.devices_paid(plan.mesh.size))

    def _simplest(self, compute_choices: Sequence[tuple[float, int, Plan]], best: Candidate) -> Candidate:
        """Return the simplest plan that fits and is about as fast as the best one; the fastest of equally simple ones.

        A schedule or a sharding never makes a plan simpler, so choices that are less simple than the plan that has been
        found are skipped.
        """
        slowest, chosen = best.step * (1 + INDISTINGUISHABLE), best

        def replaces(plan: Plan, step: float) -> bool:
            return (complexity(plan), step) < (complexity(chosen.plan), chosen.step)

        near = [(complexity(choice), bound, number, choice) for bound, number, choice in compute_choices]
        for _, bound, _, compute_choice in sorted(each for each in near if each[1] <= slowest):
            if not replaces(compute_choice, bound):
                continue
            for choice in self._space.schedule_choices(compute_choice):
                for plan in self._space.shardings(choice) if replaces(choice, bound) else ():
                    if replaces(plan, bound) and self._fits(plan):
                        candidate = self._candidate(plan, *self._memory_of(plan))
                        if candidate.step <= slowest and replaces(plan, candidate.step):
                            chosen = candidate
        return chosen

    def _fits(self, plan: Plan) -> bool:
        memory_bytes, available = self._memory_of(plan)
        return memory_bytes <= available

    def _memory_of(self, plan: Plan) -> tuple[float, float]:
        """Return the bytes that the plan needs, and those that it may use."""
        return sum(self._estimator.memory(plan).values()), self._estimator.available(plan)

    def _record(self, candidate: Candidate) -> None:
        result, axes = self.result, family(candidate.plan)
        rival = result.families.get(axes)
        if rival is None or _sort_key(candidate) < _sort_key(rival):
            result.families[axes] = candidate
        if not candidate.fits:
            return
        if result.best is None or _sort_key(candidate) < _sort_key(result.best):
            result.best = candidate
        if not self._is_beaten(candidate.step, candidate.memory_bytes, candidate.work):
            result.frontier.append(candidate)

    def _is_beaten(self, step: float, memory_bytes: float, work: float) -> bool:
        return any(other.beats(step, memory_bytes, work, self._tolerance) for other in self.result.frontier)

    def _may_matter(self, choice: Plan, bound: float, memory_bounds: Callable[[Plan], tuple[float, float]]) -> bool:
        """Return True if a sharding of this choice could be the best of its family, or be on the frontier.

        `bound` is a lower bound of the step time. `memory_bounds` returns lower bounds of the memory without and with
        sharding; it is called only if the time does not decide.
        """
        best, model_axes = self.result.best, family(choice) - {"replicate"}
        data_axes = _DATA_AXES if choice.mesh.data > 1 else _NO_DATA_AXES
        rivals = {axes: self.result.families.get(model_axes | axes) for axes in data_axes}
        fast_enough = best is None or bound <= TOO_SLOW * best.step
        if not fast_enough and not any(_may_be_better(rival, bound, 0.0, 0.0) for rival in rivals.values()):
            return False
        replicated, sharded = memory_bounds(choice)
        available = self._estimator.available(choice)
        return any(
            _may_be_better(rival, bound, sharded if "shard" in axes else replicated, available)
            for axes, rival in rivals.items()
        ) or self._may_be_chosen(choice, bound, min(replicated, sharded), available)

    def _may_be_chosen(self, plan: Plan, step: float, memory_bytes: float, available: float) -> bool:
        """Return True if a plan with these lower bounds could be the best, or be on the frontier."""
        best = self.result.best
        if memory_bytes > available or (best is not None and step > TOO_SLOW * best.step):
            return False
        if best is None or step < best.step:
            return True
        return not self._is_beaten(step, memory_bytes, step * self._estimator.devices_paid(plan.mesh.size))

    def _memory_bounds_of_compute_choice(self, compute_choice: Plan) -> tuple[float, float]:
        """Return lower bounds in bytes of all plans of a compute choice, without and with sharding.

        Selective recomputation never saves less than full recomputation. A pipeline of different blocks can be divided
        into stages in many ways, so nothing is known before that is done.
        """
        if compute_choice.mesh.pipeline > 1 and len(set(self._space.costs.block_chain.kinds)) > 1:
            return 0.0, 0.0
        bounds = [
            self._memory_bounds(compute_choice.replace_unchecked(recompute=recompute))
            for recompute in self._space.recomputations
            if recompute != "selective"
        ]
        return min(replicated for replicated, _ in bounds), min(sharded for _, sharded in bounds)

    def _time_bound(self, choice: Plan) -> float:
        terms = self._estimator.seconds(choice)
        return sum(value for name, value in terms.items() if name not in _TERMS_CHANGED_BY_SHARDING)

    def _memory_bounds(self, choice: Plan) -> tuple[float, float]:
        """Return lower bounds in bytes for the shardings of a schedule choice.

        The first is without sharding; the second is with everything sharded and nothing gathered.
        """
        replicated = sum(self._estimator.memory(choice).values())
        if choice.mesh.data == 1:
            return replicated, replicated
        mesh = replace(choice.mesh, replicate=1, shard=choice.mesh.data)
        memory = self._estimator.memory(choice.replace_unchecked(mesh=mesh, reduce="round"))
        return replicated, sum(memory.values()) - memory["gathered"]


def _may_be_better(rival: Candidate | None, step: float, memory_bytes: float, available: float) -> bool:
    """Return True if a plan with these lower bounds could be noticeably better than the rival."""
    if rival is None:
        return True
    if rival.fits:
        return step * _FAMILY_TOLERANCE < rival.step and memory_bytes <= available
    return memory_bytes <= available or memory_bytes * _FAMILY_TOLERANCE < rival.memory_bytes


def frontier(candidates: Iterable[Candidate], tolerance: float) -> list[Candidate]:
    """Return the candidates that no faster one beats, fastest first."""
    kept: list[Candidate] = []
    for candidate in sorted(candidates, key=lambda candidate: candidate.step):
        if not any(faster.beats(candidate.step, candidate.memory_bytes, candidate.work, tolerance) for faster in kept):
            kept.append(candidate)
    return kept


def _sort_key(candidate: Candidate) -> tuple[bool, float, float]:
    """Plans that fit come first, ordered by time, then memory; the others are ordered by memory, then time."""
    if candidate.fits:
        return False, candidate.step, candidate.memory_bytes
    return True, candidate.memory_bytes, candidate.step
