"""Which plans the search evaluates, on spaces whose step times and memory are given in a table.

test_branch_and_bound.py uses predicted ones. An entry of the table is identified by its micro-batch, which all plans
that are derived from it share.
"""

from collections.abc import Iterator
from dataclasses import FrozenInstanceError, dataclass, field, replace
from types import SimpleNamespace

import pytest

from onecurve.describe.plan import Plan
from onecurve.search.branch_and_bound import BranchAndBound, Candidate, SearchResult, family, frontier

AVAILABLE = 100.0


@dataclass
class Entry:
    plan: Plan
    step: float
    memory: float
    """Bytes without sharding; shards divide it."""
    bound: float | None = None
    """Lower bound of the step time; by default the step time itself."""
    shardings: tuple[str, ...] = ()
    gathered: float = 0.0
    """Bytes of gathered parameters when the plan is sharded."""
    recomputed: float = 1.0
    """Fraction of the memory that is left under full recomputation."""


def entry(text: str, step: float, memory: float = 10.0, **more: object) -> Entry:
    return Entry(Plan.parse(text), step, memory, **more)


@dataclass
class TableSpace:
    """Both the space and its estimator: looks everything up in a table and notes what is evaluated."""

    entries: list[Entry]
    kinds: tuple[int, ...] = ()
    recomputations: tuple[str, ...] = ("none", "full")
    evaluated: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.estimator = self
        self.costs = SimpleNamespace(block_chain=SimpleNamespace(kinds=self.kinds))
        self._table = {item.plan.micro_batch: item for item in self.entries}
        assert len(self._table) == len(self.entries)

    def compute_choices(self) -> Iterator[Plan]:
        return (item.plan for item in self.entries)

    def schedule_choices(self, choice: Plan) -> Iterator[Plan]:
        yield choice

    def shardings(self, choice: Plan) -> Iterator[Plan]:
        yield choice
        yield from map(Plan.parse, self._table[choice.micro_batch].shardings)

    def compute_lower_bound(self, plan: Plan) -> float:
        item = self._table[plan.micro_batch]
        return item.step if item.bound is None else item.bound

    def seconds(self, plan: Plan) -> dict[str, float]:
        self.evaluated.append(str(plan).removesuffix(" fp32"))
        bound = self.compute_lower_bound(plan)
        return {"forward": bound, "replicate": self._table[plan.micro_batch].step - bound}

    def memory(self, plan: Plan) -> dict[str, float]:
        item = self._table[plan.micro_batch]
        gathered = item.gathered if plan.mesh.shard > 1 else 0.0
        left = item.recomputed if plan.recompute == "full" else 1.0
        return {"weights": left * item.memory / plan.mesh.shard, "gathered": gathered}

    def available(self, _: Plan) -> float:
        return AVAILABLE

    def devices_paid(self, ranks: int) -> int:
        return ranks


class FirstPass(BranchAndBound):
    """Leaves out the second pass, which evaluates some plans again to choose the simplest one."""

    def _simplest(self, _: object, best: Candidate) -> Candidate:
        return best


def search(*entries: Entry, **more: object) -> tuple[SearchResult, set[str]]:
    """The result and the plans that were evaluated: those are timed twice, for their bound and for the step."""
    space = TableSpace(list(entries), **more)
    result = FirstPass(space).run()
    evaluated = {plan for plan in space.evaluated if space.evaluated.count(plan) == 2 or "shard" in plan}
    assert result.plans_evaluated == len(evaluated)
    return result, evaluated


def test_of_plans_that_are_about_as_fast_the_simplest_is_chosen() -> None:
    entries = [entry("shard2 mb1", 1.0), entry("mb2", 1.05), entry("mb3", 1.06), entry("mb4", 1.02, memory=101.0)]
    result = BranchAndBound(TableSpace(entries)).run()
    assert result.best is not None
    assert result.chosen is not None
    assert names([result.best, result.chosen]) == ["shard2 mb1", "mb2"]


def names(candidates: list[Candidate]) -> list[str]:
    return [str(candidate.plan).removesuffix(" fp32") for candidate in candidates]


def test_the_fastest_plan_that_fits_is_the_best() -> None:
    result, _ = search(entry("mb1", 3.0), entry("mb2", 2.0), entry("mb3", 1.0, memory=101.0))
    assert result.best is not None
    assert names([result.best]) == ["mb2"]
    assert result.families[frozenset()] == result.best


def test_of_equally_fast_plans_the_smaller_one_is_the_best() -> None:
    result, _ = search(entry("mb1", 2.0, memory=20.0, bound=1.0), entry("mb2", 2.0, memory=10.0, bound=1.0))
    assert names([result.best]) == ["mb2"]


def test_a_plan_that_uses_exactly_the_available_memory_fits() -> None:
    result, _ = search(entry("mb1", 2.0, memory=AVAILABLE))
    assert names([result.best]) == ["mb1"]


def test_where_nothing_fits_the_smallest_plan_of_a_family_is_shown() -> None:
    result, evaluated = search(
        entry("mb1", 1.0, memory=150.0), entry("mb2", 2.0, memory=120.0), entry("mb3", 3.0, memory=119.0)
    )
    assert result.best is None
    assert result.frontier == []
    assert names(list(result.families.values())) == ["mb2"]
    assert evaluated == {"mb1", "mb2"}  # a saving below 2 % does not matter


def test_a_plan_that_cannot_be_faster_by_two_percent_is_not_evaluated() -> None:
    # The first is the fastest of its bound; all use the same memory and devices.
    assert search(entry("mb1", 2.0, bound=1.0), entry("mb2", 1.5, bound=1.9))[1] == {"mb1", "mb2"}
    assert search(entry("mb1", 2.0, bound=1.0), entry("mb2", 2.5, bound=2.0))[1] == {"mb1"}
    assert search(entry("mb1", 2.0, bound=1.0), entry("mb2", 2.5, bound=2.1))[1] == {"mb1"}


def test_a_slower_plan_is_evaluated_if_it_saves_memory_or_money() -> None:
    big = entry("mb1", 1.0, memory=90.0)
    assert search(big, entry("mb2", 3.0, memory=40.0))[1] == {"mb1", "mb2"}
    assert search(big, entry("mb2", 3.0, memory=80.0))[1] == {"mb1"}  # within a fifth
    paid = entry("replicate4 mb1", 1.0, memory=10.0)
    result, evaluated = search(paid, entry("mb2", 3.0, memory=10.0))
    assert evaluated == {"replicate4 mb1", "mb2"}
    assert names(result.frontier) == ["replicate4 mb1", "mb2"]  # 3 device-seconds instead of 4


def test_a_plan_more_than_four_times_as_slow_is_not_offered() -> None:
    fast, small = entry("mb1", 2.0, memory=90.0), entry("mb2", 8.0, memory=10.0)
    assert search(fast, small)[1] == {"mb1", "mb2"}
    assert search(fast, replace(small, step=8.2))[1] == {"mb1"}
    # It is still the best of another family.
    other = search(fast, entry("replicate2 mb2", 18.0, memory=10.0))
    assert other[1] == {"mb1", "replicate2 mb2"}
    assert names(other[0].frontier) == ["mb1"]


def test_the_frontier_drops_plans_that_turned_out_too_slow() -> None:
    # Evaluated first because of its bound, and then four times as slow as the best, with a tolerance of a fifth.
    slow = entry("mb1", 9.4, memory=10.0, bound=0.5)
    fast = entry("mb2", 2.0, memory=90.0, bound=0.6)
    assert names(search(slow, fast)[0].frontier) == ["mb2", "mb1"]
    assert names(search(replace(slow, step=9.8), fast)[0].frontier) == ["mb2"]


def test_a_family_without_any_plan_is_always_tried() -> None:
    entries = entry("mb1", 1.0), entry("tensor2 mb2", 50.0), entry("pipeline2 mb3×2", 60.0, memory=500.0)
    result, evaluated = search(*entries)
    assert evaluated == {"mb1", "tensor2 mb2", "pipeline2 mb3×2"}
    assert set(result.families) == {frozenset(), frozenset({"tensor"}), frozenset({"pipeline"})}


def test_a_fitting_plan_replaces_a_faster_one_of_its_family_that_does_not_fit() -> None:
    result, evaluated = search(entry("mb1", 1.0, memory=150.0), entry("mb2", 2.0, memory=100.0))
    assert evaluated == {"mb1", "mb2"}
    assert names([result.families[frozenset()]]) == ["mb2"]
    slow = search(entry("mb1", 1.0, memory=150.0), entry("mb2", 200.0, memory=100.0))[0]
    assert names([slow.families[frozenset()]]) == ["mb2"]


def test_once_a_plan_fits_larger_ones_that_do_not_are_skipped() -> None:
    fits = entry("mb1", 2.0, bound=1.0)
    assert search(fits, entry("mb2", 1.5, memory=101.0))[1] == {"mb1"}
    assert search(fits, entry("mb2", 1.5, memory=100.0))[1] == {"mb1", "mb2"}


def test_shardings_of_a_choice_that_does_not_fit_by_itself() -> None:
    result, evaluated = search(entry("replicate2 mb1", 1.0, memory=180.0, shardings=("shard2 mb1",), gathered=5.0))
    assert evaluated == {"replicate2 mb1", "shard2 mb1"}
    assert names([result.best]) == ["shard2 mb1"]
    assert result.best.memory_bytes == 95.0
    assert not result.families[frozenset({"replicate"})].fits


def test_a_choice_whose_smallest_sharding_does_not_fit_is_skipped() -> None:
    # The families replicate, shard, and both are known and fit; then a choice of 4 ranks needs 410 / 4 bytes.
    known = [
        entry("replicate4 mb1", 2.0, bound=1.0, shardings=("shard4 mb1", "replicate2·shard2 mb1")),
    ]
    assert "replicate4 mb2" not in search(*known, entry("replicate4 mb2", 1.5, memory=410.0))[1]
    fitting = entry("replicate4 mb2", 1.5, memory=400.0, gathered=50.0, shardings=("shard4 mb2",))
    # Its bound leaves out what is gathered, so it is considered; the sharding itself needs 150 bytes.
    assert search(*known, fitting)[1] == {"replicate4 mb1", "shard4 mb1", "replicate2·shard2 mb1"}
    fitting = replace(fitting, gathered=0.0)
    assert "shard4 mb2" in search(*known, fitting)[1]


@pytest.mark.parametrize(
    ("step", "memory", "work", "tolerance", "beats"),
    [
        (2.0, 10.0, 4.0, 1.0, True),
        (1.9, 10.0, 4.0, 1.0, False),
        (2.0, 9.9, 4.0, 1.0, False),
        (2.0, 10.0, 3.9, 1.0, False),
        (1.0, 5.0, 2.0, 2.0, True),
        (0.9, 5.0, 2.0, 2.0, False),
        (1.0, 4.9, 2.0, 2.0, False),
        (1.0, 5.0, 1.9, 2.0, False),
    ],
)
def test_one_plan_beats_another_in_time_memory_and_work(
    step: float, memory: float, work: float, tolerance: float, beats: bool
) -> None:
    candidate = Candidate(Plan(), step=2.0, memory_bytes=10.0, available_bytes=20.0, devices_paid=2)
    assert candidate.work == 4.0
    assert candidate.beats(step, memory, work, tolerance) is beats


def test_a_frontier_by_hand() -> None:
    def candidate(step: float, memory: float) -> Candidate:
        return Candidate(Plan(), step, memory, 100.0, 1)

    fast, small, middle, worse = candidate(1.0, 90.0), candidate(3.0, 10.0), candidate(2.0, 50.0), candidate(2.5, 60.0)
    assert frontier([worse, small, middle, fast], 1.0) == [fast, middle, small]
    assert frontier([small, fast, middle], 2.0) == [fast, small]


def test_a_family_is_the_set_of_axes() -> None:
    assert family(Plan.parse("pipeline2·shard2 mb1×2")) == {"pipeline", "shard"}
    assert family(Plan.parse("mb1")) == frozenset()


def test_a_candidate_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Candidate(Plan(), 1.0, 1.0, 1.0, 1).step = 2.0


def timed(*entries: Entry, **more: object) -> set[str]:
    """The plans whose step or schedule was timed; a compute choice that cannot matter is not."""
    space = TableSpace(list(entries), **more)
    BranchAndBound(space).run()
    return set(space.evaluated)


def test_a_compute_choice_that_cannot_fit_is_not_timed() -> None:
    fits, large = entry("pipeline2 mb1×2", 2.0, bound=1.0), entry("pipeline2 mb2×2", 1.5, memory=101.0)
    assert timed(fits, large) == {"pipeline2 mb1×2"}
    assert timed(fits, large, kinds=(0, 0)) == {"pipeline2 mb1×2"}
    # Memory under a pipeline of different blocks is not known before they are divided into stages.
    assert timed(fits, large, kinds=(0, 1)) == {"pipeline2 mb1×2", "pipeline2 mb2×2"}
    alone, too_large = entry("mb1", 2.0, bound=1.0), entry("mb2", 1.5, memory=101.0)
    assert timed(alone, too_large, kinds=(0, 1)) == {"mb1"}


def test_a_compute_choice_that_is_far_too_slow_is_not_timed() -> None:
    assert timed(entry("mb1", 2.0, memory=50.0), entry("mb2", 8.2, memory=10.0)) == {"mb1"}
    assert timed(entry("mb1", 2.0, memory=50.0), entry("mb2", 8.0, memory=10.0)) == {"mb1", "mb2"}


def test_of_equal_plans_the_first_one_stays() -> None:
    result, evaluated = search(entry("mb1", 2.0, bound=1.0), entry("mb2", 2.0, bound=1.0))
    assert evaluated == {"mb1", "mb2"}
    assert names([result.best, result.families[frozenset()]]) == ["mb1", "mb1"]


def test_a_family_keeps_a_plan_that_is_within_two_percent() -> None:
    best, rival = entry("mb1", 0.5), entry("replicate2 mb2", 1.02, bound=0.6)
    assert "replicate2 mb3" not in search(best, rival, entry("replicate2 mb3", 1.0))[1]
    assert "replicate2 mb3" in search(best, rival, entry("replicate2 mb3", 0.99))[1]


def test_where_nothing_fits_a_plan_must_save_more_than_two_percent_of_memory() -> None:
    large = entry("mb1", 1.0, memory=153.0)  # 1.02 · 150
    assert search(large, entry("mb2", 2.0, memory=150.0))[1] == {"mb1"}
    assert search(large, entry("mb2", 2.0, memory=149.0))[1] == {"mb1", "mb2"}


def test_a_slow_choice_matters_if_only_its_shards_are_small() -> None:
    known = entry("replicate4 mb1", 1.0, memory=80.0, shardings=("shard4 mb1", "replicate2·shard2 mb1"), gathered=60.0)
    slower = entry("replicate4 mb2", 3.0, memory=120.0, shardings=("shard4 mb2",))
    result, evaluated = search(known, slower)
    assert "shard4 mb2" in evaluated
    assert names(result.frontier) == ["replicate4 mb1", "shard4 mb2"]


def test_a_cheaper_plan_that_uses_exactly_the_available_memory_is_evaluated() -> None:
    four, two = entry("replicate4 mb1", 1.0, memory=90.0), entry("replicate2 mb2", 1.5, memory=AVAILABLE)
    assert search(four, two)[1] == {"replicate4 mb1", "replicate2 mb2"}


def test_a_family_prefers_a_plan_that_just_fits_even_if_another_family_is_far_better() -> None:
    best = entry("tensor2 mb3", 0.1, memory=1.0)
    result, _ = search(best, entry("mb1", 1.0, memory=101.0), entry("mb2", 2.0, memory=AVAILABLE))
    assert names([result.families[frozenset()]]) == ["mb2"]


def test_a_compute_choice_that_fits_with_recomputation_is_timed() -> None:
    alone, large = entry("mb1", 2.0, bound=1.0), entry("mb2", 1.5, memory=150.0)
    assert timed(alone, large) == {"mb1"}
    assert timed(alone, replace(large, recomputed=0.5)) == {"mb1", "mb2"}
    assert timed(alone, replace(large, recomputed=0.5), recomputations=("none",)) == {"mb1"}
    four = entry("replicate4 mb1", 2.0, bound=1.0, shardings=("shard4 mb1", "replicate2·shard2 mb1"))
    sharded = entry("replicate4 mb2", 1.5, memory=800.0)
    assert "replicate4 mb2" not in timed(four, sharded)
    assert "replicate4 mb2" in timed(four, replace(sharded, recomputed=0.5))
