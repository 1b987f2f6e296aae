"""Which ranks of which hosts train under which plan, when hosts come and go."""

import asyncio
from collections.abc import Mapping

import pytest

from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup, Link
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import Estimate, PredictedStep
from onecurve.describe.host import HostRegistration
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan
from onecurve.hosts.recovery import Crew
from onecurve.verbs.crews import GivenCrews, HostCrew, PlannedCrews


def hosts(count: int, kind: str = "cpu", devices: int = 1) -> dict[str, HostRegistration]:
    cluster = Cluster(
        (HostGroup(DeviceSpec("a device", kind, memory=1 << 34, flops={"fp32": 1e12}), devices_per_host=devices),)
    )
    return {f"h{n}": HostRegistration(name=f"h{n}", address=f"10.0.0.{n}", cluster=cluster) for n in range(count)}


def chosen(crews: GivenCrews | PlannedCrews, of: Mapping[str, HostRegistration]) -> tuple[str, list[int]]:
    crew = asyncio.run(crews.choose(of))
    return str(crew.plan), [ranks for _, ranks in crew.placement]


def test_a_given_plan_is_fitted_to_the_hosts_that_are_left_and_comes_back() -> None:
    crews = GivenCrews(Plan.parse("replicate3 mb4 bf16"))
    assert chosen(crews, hosts(3)) == ("replicate3 mb4 bf16", [1, 1, 1])
    assert chosen(crews, hosts(2)) == ("replicate2 mb6 bf16", [1, 1])
    assert chosen(crews, hosts(3)) == ("replicate3 mb4 bf16", [1, 1, 1])


def test_a_given_plan_that_does_not_fit_from_the_start_is_refused() -> None:
    with pytest.raises(OnecurveError, match="its 3 ranks cannot be placed on 2 hosts"):
        chosen(GivenCrews(Plan.parse("replicate3 mb4")), hosts(2))


def test_a_given_plan_uses_no_more_ranks_than_there_are_accelerators() -> None:
    crews = GivenCrews(Plan.parse("shard8 mb4"))
    assert chosen(crews, hosts(2, "cuda", 4)) == ("shard8 mb4 fp32", [4, 4])
    assert chosen(crews, hosts(1, "cuda", 4)) == ("shard4 mb8 fp32", [4])


def test_hosts_that_are_too_few_for_the_split_of_the_model_end_the_run() -> None:
    crews = GivenCrews(Plan.parse("tensor4 mb8"))
    assert chosen(crews, hosts(4, "cuda", 1)) == ("tensor4 mb8 fp32", [1, 1, 1, 1])
    with pytest.raises(OnecurveError, match="the 3 hosts that are left are too few"):
        chosen(crews, hosts(3, "cuda", 1))


def planned(asked: list[int]) -> PlannedCrews:
    async def best_plan(cluster: Cluster) -> Estimate:
        asked.append(cluster.devices)
        plan = Plan(Mesh(replicate=cluster.devices), micro_batch=12 // cluster.devices)
        return Estimate(
            plan=plan,
            seconds={"compute": 12 / cluster.devices},
            memory={},
            available_bytes=1e9,
            utilization=0.5,
            steps=100,
            error=0.1,
        )

    async def measure_link(_: Mapping[str, HostRegistration]) -> Link:
        return Link(latency=1e-4, bandwidth=1e9)

    return PlannedCrews(earlier=None, best_plan=best_plan, measure_link=measure_link, say=lambda _: None)


def test_plans_for_fewer_hosts_are_prepared_once() -> None:
    asked: list[int] = []
    crews = planned(asked)
    assert chosen(crews, hosts(4))[1] == [1, 1, 1, 1]
    asyncio.run(crews.prepare(hosts(4)))
    assert asked == [4, 3, 2]
    assert chosen(crews, hosts(3))[1] == [1, 1, 1]
    assert chosen(crews, hosts(2))[1] == [1, 1]
    assert asked == [4, 3, 2]


def test_a_joined_host_is_worth_a_change_if_a_step_is_five_percent_shorter() -> None:
    crews = planned([])
    crew = asyncio.run(crews.choose(hosts(2)))
    assert asyncio.run(crews.larger(crew, hosts(3)))
    fast = Crew(crew.placement, crew.plan, PredictedStep({"compute": 4.1}))
    assert not asyncio.run(crews.larger(fast, hosts(3)))


def test_slow_ranks_and_memory_change_only_the_plan() -> None:
    crew = Crew([("h0", 2)], Plan.parse("replicate2 mb4"), PredictedStep({"compute": 1.0}, 0.5))
    crews = HostCrew(2, crew.plan, crew.predicted)
    rebalanced, smaller = crews.rebalanced(crew, {1: 1 / 3}), crews.smaller(crew)
    assert rebalanced is not None
    assert smaller is not None
    assert rebalanced.predicted == PredictedStep(peak_seconds=0.5)
    assert (str(rebalanced.plan), rebalanced.placement) == ("replicate2 mb(6,2) fp32", crew.placement)
    assert str(smaller.plan) == "replicate2 mb2×2 fp32"
    tensor = Crew([("h0", 2)], Plan.parse("tensor2 mb4"))
    assert crews.rebalanced(tensor, {1: 0.3}) is None
    assert crews.smaller(Crew([("h0", 2)])) is None


def test_a_run_waits_for_the_hosts_that_a_given_plan_needs() -> None:
    crews = GivenCrews(Plan.parse("replicate6 mb4"))
    assert crews.fits(hosts(3), 8)
    assert not crews.fits(hosts(4), 8)
    assert crews.fits(hosts(4), 5), "no number of hosts fits: that is said at once"
