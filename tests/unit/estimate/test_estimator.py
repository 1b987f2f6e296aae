from dataclasses import replace

import pytest

from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup, Link
from onecurve.describe.constants import Constants
from onecurve.describe.costs import BlockChain, CostTrace, JobCosts
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ComputeLoad, ModuleProfile, Profile, Work
from onecurve.estimate.estimator import Estimator

WORK = Work(ComputeLoad({"matrix": 10**9}, 10**6, 10), ComputeLoad({"matrix": 10**9}, 10**6, 10), ())
PROFILE = Profile(4, (), ModuleProfile((), 100, 100, 400, 400, WORK, 1000, 0), 0, 2)
COSTS = JobCosts({"fp32": CostTrace(PROFILE, replace(PROFILE, samples=8))}, 8, 10)


def hourly(groups: tuple[HostGroup, ...], plan: str) -> float | None:
    return Estimator(Cluster(groups), COSTS).estimate(Plan.parse(plan)).price_per_hour


def test_accelerators_are_paid_for_one_by_one_and_hosts_as_a_whole() -> None:
    gpu = HostGroup(DeviceSpec("d", "cuda", 10**10, 1e12, {"fp32": 1e14}), 2, 8, price_per_hour=3.0)
    cpu = HostGroup(DeviceSpec("c", "cpu", 10**10, 1e10, {"fp32": 1e11}), 3, 4, 4, price_per_hour=0.5)
    assert hourly((gpu,), "replicate4 mb2") == pytest.approx(4 * 3.0)
    assert hourly((cpu,), "mb8") == pytest.approx(0.5)
    assert hourly((cpu,), "replicate4 mb2") == pytest.approx(2 * 0.5)
    dearer = replace(gpu, count=1, price_per_hour=5.0)
    assert hourly((replace(gpu, count=1), dearer), "replicate8 mb1") == pytest.approx(8 * 3.0)
    assert hourly((replace(gpu, price_per_hour=None),), "mb8") is None


@pytest.mark.parametrize(
    ("kind", "hosts_used", "plan", "snapshots", "copies"),
    [
        ("cpu", 1, "mb8", 2, 2),
        ("cpu", 1, "replicate2 mb4", 2, 2),
        ("cpu", 2, "replicate4 mb2", 2, 5),
        ("cpu", 2, "replicate4 mb2", 1, 1),
        ("cuda", 1, "replicate2 mb4", 2, None),
    ],
)
def test_snapshots_take_memory_of_hosts_and_more_on_several(
    kind: str, hosts_used: int, plan: str, snapshots: int, copies: int | None
) -> None:
    hosts = HostGroup(DeviceSpec("d", kind, 10**10, 1e10, {"fp32": 1e11}), hosts_used, 2, 2)
    memory = Estimator(Cluster((hosts,)), replace(COSTS, snapshots=snapshots)).memory(Plan.parse(plan))
    state = 100 * 4 + 100 * 2 * 4
    assert memory.get("snapshots") == (copies and copies * state / Plan.parse(plan).mesh.size)
    assert "snapshots" not in Estimator(Cluster((hosts,)), COSTS).memory(Plan.parse(plan))


PLAIN = Constants(
    memory_efficiency=1.0,
    matmul_efficiency=1.0,
    op_launch_seconds=0.0,
    step_overhead_seconds=0.0,
    round_overhead_seconds=0.0,
    inter_host_efficiency=1.0,
    intra_host_efficiency=1.0,
    overlap_penalty=0.0,
)


def load(flops: int) -> ComputeLoad:
    return ComputeLoad({"matrix": flops})


def module(names: int, flops: int, parameters: int = 0, kept: int = 0) -> ModuleProfile:
    return ModuleProfile(
        names=("b",) * names,
        parameters=parameters,
        trainable=parameters,
        parameter_bytes=0,
        trainable_bytes=0,
        work=Work(load(flops), load(2 * flops)),
        activation_bytes=kept,
        input_bytes=0,
    )


def profile(samples: int) -> Profile:
    """Two blocks of 1e9 and one of 3e9 FLOPs per sample forward, twice as many backward; a head of 2e9."""
    return Profile(
        samples=samples,
        blocks=(module(2, 10**9 * samples, 10**6, 1000 * samples), module(1, 3 * 10**9 * samples, 10**6)),
        outside=module(0, 2 * 10**9 * samples),
        shared_activation_bytes=0,
        optimizer_tensors=1,
    )


CHAIN = BlockChain(blocks=((1.0, 5.0), (1.0, 6.0), (1.0, 7.0)), first=(0.5, 8.0), last=(9.0, 9.0), kinds=(0, 1, 0))
JOB = JobCosts({"fp32": CostTrace(profile(4), profile(8))}, global_batch=8, steps=10, block_chain=CHAIN)
FAST = HostGroup(DeviceSpec("f", "cuda", 10**9, 1e12, {"fp32": 1e12}, 1.0), 1, 2, 4, rank_overhead_bytes=7.0)
SLOW = replace(FAST, device=replace(FAST.device, name="s", flops={"fp32": 5e11}, memory=10**8))
# A sample takes 7e9 FLOPs forward and 14e9 backward.
SAMPLE_SECONDS = 21e9 / 1e12


def estimator(*groups: HostGroup, costs: JobCosts = JOB, **constants: float) -> Estimator:
    return Estimator(Cluster(groups, replace(PLAIN, **constants)), costs)


def step(terms: dict[str, float]) -> float:
    return terms["forward"] + terms["backward"]


def test_an_estimate_by_hand() -> None:
    estimate = estimator(FAST).estimate(Plan.parse("mb4×2"))
    assert step(estimate.seconds) == pytest.approx(8 * SAMPLE_SECONDS)
    assert estimate.seconds["update"] == pytest.approx(3e6 * (3 + 2) * 4 / 1e12)
    assert estimate.available_bytes == pytest.approx(0.95 * 10**9)
    assert estimate.memory["overhead"] == 7.0
    assert estimate.memory["optimizer"] == 3e6 * 4
    assert estimate.memory["activations"] == pytest.approx(2 * 4000)
    assert (estimate.steps, estimate.error, estimate.threads) == (10, 0.15, 0)


def test_utilization_is_of_the_devices_of_the_plan() -> None:
    free = replace(JOB, traces={"fp32": CostTrace(replace(profile(4)), replace(profile(8)))})
    one = estimator(FAST, costs=free).estimate(Plan.parse("mb8"))
    assert one.utilization == pytest.approx(8 * 21e9 / (1e12 * one.step))
    two = estimator(FAST, costs=free).estimate(Plan.parse("replicate2 mb4"))
    assert two.utilization == pytest.approx(8 * 21e9 / (2e12 * two.step))
    mixed = estimator(FAST, SLOW, costs=free).estimate(Plan.parse("replicate4 mb2"))
    assert mixed.utilization == pytest.approx(8 * 21e9 / (3e12 * mixed.step))


def test_cpu_ranks_have_threads() -> None:
    cpu = HostGroup(DeviceSpec("c", "cpu", 10**9, 1e12, {"fp32": 1e12}, 1.0), 1, 4, 4)
    assert estimator(cpu).estimate(Plan.parse("replicate2 mb4")).threads == 2


def test_uneven_shares_take_as_long_as_the_largest() -> None:
    assert step(estimator(FAST).seconds(Plan.parse("replicate2 mb(6,2)"))) == pytest.approx(6 * SAMPLE_SECONDS)


def test_the_calibration_of_finished_runs_multiplies_everything() -> None:
    plan = Plan.parse("replicate2 mb4")
    once, twice = estimator(FAST).seconds(plan), estimator(FAST, calibration=2.0).seconds(plan)
    assert twice == {name: pytest.approx(2 * value) for name, value in once.items()}
    bounds = [estimator(FAST, calibration=factor).compute_lower_bound(plan) for factor in (1.0, 2.0)]
    assert bounds == [pytest.approx(4 * SAMPLE_SECONDS), pytest.approx(8 * SAMPLE_SECONDS)]


def test_reading_is_noticed_as_far_as_it_takes_longer_than_the_step() -> None:
    plan = Plan.parse("replicate2 mb2×2")
    computed = sum(estimator(FAST).seconds(plan).values())
    slow, fast = (
        estimator(FAST, costs=replace(JOB, read_seconds_per_sample=seconds)).seconds(plan)["data"]
        for seconds in (1.0, 1e-6)
    )
    assert slow == pytest.approx(4 * 1.0 - computed)
    assert fast == 0


def test_the_slowest_group_determines_the_time() -> None:
    plan = Plan.parse("replicate4 mb2")
    assert step(estimator(FAST, SLOW).seconds(plan)) == pytest.approx(2 * 2 * SAMPLE_SECONDS)
    assert step(estimator(SLOW, FAST).seconds(plan)) == pytest.approx(2 * 2 * SAMPLE_SECONDS)
    assert estimator(FAST, SLOW).compute_lower_bound(plan) == pytest.approx(2 * 2 * SAMPLE_SECONDS)
    # Ranks 0 and 1 are on the fast group, 2 and 3 on the slow one.
    assert step(estimator(FAST, SLOW).seconds(Plan.parse("replicate4 mb(3,3,1,1)"))) == pytest.approx(
        3 * SAMPLE_SECONDS
    )
    assert step(estimator(FAST, SLOW).seconds(Plan.parse("replicate4 mb(1,5,1,1)"))) == pytest.approx(
        5 * SAMPLE_SECONDS
    )


def test_a_plan_may_use_the_first_group_alone() -> None:
    assert step(estimator(FAST, SLOW).seconds(Plan.parse("replicate2 mb4"))) == pytest.approx(4 * SAMPLE_SECONDS)
    assert estimator(FAST, SLOW).available(Plan.parse("replicate2 mb4")) == pytest.approx(0.95 * 10**9)


def test_the_group_with_the_least_memory_left_counts() -> None:
    plan = Plan.parse("replicate4 mb(3,3,1,1)")
    for groups in ((FAST, SLOW), (FAST, SLOW, SLOW)):
        assert estimator(*groups).available(plan) == pytest.approx(0.95 * 10**8)
        assert estimator(*groups).memory(plan)["activations"] == pytest.approx(2 * 1000)


def test_all_groups_wait_for_the_slowest_network() -> None:
    far = replace(FAST, inter_host=Link(0.0, 1e9))
    farther = replace(FAST, inter_host=Link(0.0, 1e8))
    plan = Plan.parse("replicate4 mb2")
    terms = [estimator(*groups).seconds(plan)["replicate"] for groups in ((far, farther), (farther, farther))]
    assert terms[0] == terms[1] > estimator(far, far).seconds(plan)["replicate"]


def test_devices_that_are_paid_for() -> None:
    gpus = estimator(FAST, SLOW)
    assert [gpus.devices_paid(ranks) for ranks in (1, 2, 3, 4)] == [1, 2, 3, 4]
    cpu = HostGroup(DeviceSpec("c", "cpu", 10**9, 1e12, {"fp32": 1e12}), 3, 4, 4)
    hosts = estimator(cpu)
    assert [hosts.devices_paid(ranks) for ranks in (1, 2, 3, 4, 6, 12)] == [1, 2, 3, 2, 3, 3]


def test_groups_have_their_own_price() -> None:
    gpu = replace(FAST, price_per_hour=3.0)
    dearer = replace(SLOW, price_per_hour=5.0)
    assert hourly((gpu, dearer), "replicate4 mb2") == pytest.approx(2 * 3.0 + 2 * 5.0)
    assert hourly((gpu, replace(dearer, price_per_hour=None)), "replicate4 mb2") is None
    assert hourly((gpu, replace(dearer, price_per_hour=None)), "replicate2 mb4") == pytest.approx(2 * 3.0)


def test_blocks_are_weighed_by_their_time_under_the_plan() -> None:
    chain = estimator(FAST).block_chain(Plan.parse("mb8"))
    assert chain.blocks == ((1.0, 5.0), (3.0, 6.0), (1.0, 7.0))
    assert (chain.first, chain.last) == ((0.5, 8.0), (2.0, 9.0))
    unknown = replace(JOB, block_chain=replace(CHAIN, kinds=()))
    assert estimator(FAST, costs=unknown).block_chain(Plan.parse("mb8")) is unknown.block_chain
