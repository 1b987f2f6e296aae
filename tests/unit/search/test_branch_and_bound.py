"""Against looking at every plan, on spaces small enough for it."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup, Link
from onecurve.describe.costs import BlockChain, Costs, Trace
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate
from onecurve.describe.profile import Collective, Load, ModuleProfile, Profile, Work
from onecurve.predict.estimator import Estimator
from onecurve.search.branch_and_bound import TOO_SLOW, BranchAndBound, Candidate, family
from onecurve.search.space import Space


def look(estimator: Estimator, plan: Plan) -> Candidate:
    return Candidate(
        plan,
        sum(estimator.seconds(plan).values()),
        sum(estimator.memory(plan).values()),
        estimator.available(plan),
        estimator.taken(plan.mesh.size),
    )


def module(
    names: tuple[str, ...], flops: int, moved: int, parameters: int, kept: int, norm: bool, cut: int = 1
) -> ModuleProfile:
    collectives = (Collective("all_reduce", kept // 4, "forward"), Collective("all_reduce", kept // 4, "backward"))
    asked = (Collective("all_reduce", 64, "forward", "data"), Collective("all_reduce", 64, "backward", "data"))
    work = Work(
        Load({"matrix": flops // cut}, moved // cut, 10),
        Load({"matrix": 2 * flops // cut}, 2 * moved // cut, 20),
        (*(collectives if cut > 1 else ()), *(asked if norm else ())),
    )
    elements = parameters // cut
    return ModuleProfile(names, elements, elements, 4 * elements, 4 * elements, work, kept // cut, kept // 8, kept // 3)


def costs(
    batch: int, blocks: int, flops: int, parameters: int, kept: int, head: float, norm: bool = False, unlike: int = 1
) -> Costs:
    """`unlike`: how many times as large as the others the first block is."""
    names = tuple(f"b.{n}" for n in range(blocks))
    kinds = [(names[:1], unlike), (names[1:], 1)] if unlike > 1 and blocks > 1 else [(names, 1)]

    def profile(samples: int, cut: int = 1) -> Profile:
        made = tuple(
            module(same, times * flops * samples, kept * samples, times * parameters, times * kept * samples, norm, cut)
            for same, times in kinds
        )
        outside = module((), int(head * flops * samples), kept * samples, parameters, kept * samples, norm, cut)
        return Profile(samples, made, outside, 0, 2)

    few, many = max(1, batch // 2), batch
    traces = {
        "fp32": Trace(profile(few), profile(many), {False: profile(many, 2), True: profile(many, 2)}),
    }
    order = tuple(kind for kind, (same, _) in enumerate(kinds) for _ in same)
    row = BlockChain(((1.0, 1.0),) * blocks, last=(head, 1.0), kinds=order)
    return Costs(traces, batch, 10, row, (2, 4), {"*": "0"})


def cluster(
    hosts: int, devices: int, memory: int, network: float, unequal: bool = False, latency: float = 1e-3
) -> Cluster:
    device = DeviceSpec("d", "cuda", memory, 1e12, {"fp32": 1e14})
    slower = DeviceSpec("s", "cuda", memory // 2, 1e12, {"fp32": 4e13})
    links = Link(3e-6, 1e11), Link(latency, network)
    groups = [HostGroup(each, hosts, devices, 0, *links, rank_overhead_bytes=1e9) for each in (device, slower)]
    return Cluster(tuple(groups if unequal else groups[:1]))


spaces = st.builds(
    lambda *given: (costs(*given[:8]), cluster(*given[8:])),
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


HEAVY_FIRST = costs(4, 4, 10**11, 2 * 10**7, 10**6, 0.1, unlike=15)
"""In two stages it fits only if the first block is alone in one."""


@settings(max_examples=80, deadline=None)
@given(spaces)
@example((HEAVY_FIRST, cluster(4, 1, 6_580_000_000, 1e9, latency=0.05)))
def test_nothing_better_is_left_out(made: tuple[Costs, Cluster]) -> None:
    space = Space(Estimator(made[1], made[0]))
    result = BranchAndBound(space).run()
    every = [look(space.estimator, plan) for plan in space.plans()]
    fitting = [each for each in every if each.fits]
    assert (result.best is None) == (not fitting)
    if result.best is not None:
        assert result.best.step == min(each.step for each in fitting)
        assert result.frontier[0] == result.best
    for each in fitting:
        found = result.families[family(each.plan)]
        assert found.fits
        assert found.step <= each.step * 1.03
        if each.step <= TOO_SLOW * result.frontier[0].step:
            assert any(other.beats(each.step, each.memory_bytes, each.work, 1.5) for other in result.frontier), each
    for each in every:
        assert family(each.plan) in result.families


@settings(max_examples=30, deadline=None)
@given(spaces)
def test_every_plan_can_be_obeyed(made: tuple[Costs, Cluster]) -> None:
    plans = list(Space(Estimator(made[1], made[0])).plans())
    assert len(set(map(str, plans))) == len(plans)
    for plan in plans:
        validate(plan, made[0].global_batch, made[1])


def test_most_of_a_large_space_is_left_out() -> None:
    machines = cluster(64, 8, 80 * 10**9, 5e10, latency=8e-6)
    space = Space(Estimator(machines, costs(512, 32, 10**12, 10**8, 10**8, 0.5)))
    assert BranchAndBound(space).run().looked_at < sum(1 for _ in space.plans()) / 10
