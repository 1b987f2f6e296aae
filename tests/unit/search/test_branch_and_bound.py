"""The search compared with the evaluation of every plan, on spaces small enough for that."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup, Link
from onecurve.describe.costs import BlockChain, CostTrace, JobCosts
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.describe.profile import Collective, ComputeLoad, ModuleProfile, Profile, Work
from onecurve.estimate.estimator import Estimator
from onecurve.search.branch_and_bound import TOO_SLOW, BranchAndBound, Candidate, family
from onecurve.search.simplicity import INDISTINGUISHABLE, complexity
from onecurve.search.space import Space


def candidate_of(estimator: Estimator, plan: Plan) -> Candidate:
    return Candidate(
        plan,
        sum(estimator.seconds(plan).values()),
        sum(estimator.memory(plan).values()),
        estimator.available(plan),
        estimator.devices_paid(plan.mesh.size),
    )


def module(
    names: tuple[str, ...], flops: int, moved: int, parameters: int, saved: int, norm: bool, degree: int = 1
) -> ModuleProfile:
    collectives = (Collective("all_reduce", saved // 4, "forward"), Collective("all_reduce", saved // 4, "backward"))
    batch_norm = (Collective("all_reduce", 64, "forward", "data"), Collective("all_reduce", 64, "backward", "data"))
    work = Work(
        ComputeLoad({"matrix": flops // degree}, moved // degree, 10),
        ComputeLoad({"matrix": 2 * flops // degree}, 2 * moved // degree, 20),
        (*(collectives if degree > 1 else ()), *(batch_norm if norm else ())),
    )
    elements = parameters // degree
    return ModuleProfile(
        names, elements, elements, 4 * elements, 4 * elements, work, saved // degree, saved // 8, saved // 3
    )


def costs(
    batch: int,
    blocks: int,
    flops: int,
    parameters: int,
    saved: int,
    head: float,
    norm: bool = False,
    first_factor: int = 1,
) -> JobCosts:
    """`first_factor`: size of the first block as a multiple of the others."""
    names = tuple(f"b.{n}" for n in range(blocks))
    kinds = [(names[:1], first_factor), (names[1:], 1)] if first_factor > 1 and blocks > 1 else [(names, 1)]

    def profile(samples: int, degree: int = 1) -> Profile:
        modules = tuple(
            module(
                same,
                factor * flops * samples,
                saved * samples,
                factor * parameters,
                factor * saved * samples,
                norm,
                degree,
            )
            for same, factor in kinds
        )
        outside = module((), int(head * flops * samples), saved * samples, parameters, saved * samples, norm, degree)
        return Profile(samples, modules, outside, 0, 2)

    few, many = max(1, batch // 2), batch
    traces = {
        "fp32": CostTrace(profile(few), profile(many), profile(many, 2), profile(many, 2)),
    }
    order = tuple(kind for kind, (same, _) in enumerate(kinds) for _ in same)
    chain = BlockChain(((1.0, 1.0),) * blocks, last=(head, 1.0), kinds=order)
    return JobCosts(traces, batch, 10, chain, (2, 4), {"*": "0"})


def cluster(
    hosts: int, devices: int, memory: int, network: float, unequal: bool = False, latency: float = 1e-3
) -> Cluster:
    device = DeviceSpec("d", "cuda", memory, 1e12, {"fp32": 1e14})
    slower = DeviceSpec("s", "cuda", memory // 2, 1e12, {"fp32": 4e13})
    links = Link(3e-6, 1e11), Link(latency, network)
    groups = [HostGroup(spec, hosts, devices, 0, *links, rank_overhead_bytes=1e9) for spec in (device, slower)]
    return Cluster(tuple(groups if unequal else groups[:1]))


spaces = st.builds(
    lambda *drawn: (costs(*drawn[:8]), cluster(*drawn[8:])),
    st.sampled_from([4, 6, 8]),
    st.sampled_from([1, 3, 4]),
    st.sampled_from([10**9, 10**11, 10**12]),
    st.sampled_from([10**6, 10**8, 10**9]),
    st.sampled_from([10**6, 10**8, 10**9]),
    st.sampled_from([0.1, 2.0]),
    st.booleans(),
    st.sampled_from([1, 1, 8]),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([4 * 10**9, 40 * 10**9]),
    st.sampled_from([1e9, 1e11]),
    st.booleans(),
)


HEAVY_FIRST = costs(4, 4, 10**11, 2 * 10**7, 10**6, 0.1, first_factor=15)
"""In two stages it fits only if the first block has a stage of its own."""


@settings(max_examples=80, deadline=None)
@given(spaces)
@example((HEAVY_FIRST, cluster(4, 1, 6_580_000_000, 1e9, latency=0.05)))
def test_no_better_plan_is_missed(problem: tuple[JobCosts, Cluster]) -> None:
    space = Space(Estimator(problem[1], problem[0]))
    result = BranchAndBound(space).run()
    candidates = [candidate_of(space.estimator, plan) for plan in space.plans()]
    fitting = [candidate for candidate in candidates if candidate.fits]
    assert (result.best is None) == (result.chosen is None) == (not fitting)
    if result.best is not None:
        assert result.best.step == min(candidate.step for candidate in fitting)
        assert result.frontier[0] == result.best
        near = [candidate for candidate in fitting if candidate.step <= result.best.step * (1 + INDISTINGUISHABLE)]
        simplest = min((complexity(candidate.plan), candidate.step) for candidate in near)
        assert result.chosen is not None
        assert result.chosen.fits
        assert (complexity(result.chosen.plan), result.chosen.step) == simplest
    for candidate in fitting:
        best = result.families[family(candidate.plan)]
        assert best.fits
        assert best.step <= candidate.step * 1.03
        if candidate.step <= TOO_SLOW * result.frontier[0].step:
            assert any(
                other.beats(candidate.step, candidate.memory_bytes, candidate.work, 1.5) for other in result.frontier
            ), candidate
    for candidate in candidates:
        assert family(candidate.plan) in result.families


@settings(max_examples=30, deadline=None)
@given(spaces)
def test_every_plan_is_valid(problem: tuple[JobCosts, Cluster]) -> None:
    plans = list(Space(Estimator(problem[1], problem[0])).plans())
    assert len(set(map(str, plans))) == len(plans)
    for plan in plans:
        validate(plan, problem[0].global_batch, problem[1])


def test_most_of_a_large_space_is_not_evaluated() -> None:
    machines = cluster(64, 8, 80 * 10**9, 5e10, latency=8e-6)
    space = Space(Estimator(machines, costs(512, 32, 10**12, 10**8, 10**8, 0.5)))
    assert BranchAndBound(space).run().plans_evaluated < sum(1 for _ in space.plans()) / 10
