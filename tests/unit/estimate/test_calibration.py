"""Timings of the model are reproduced by the prediction."""

from dataclasses import replace

import pytest

from onecurve.describe.cluster import Cluster, CoreSplit, DeviceSpec, HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.costs import CostTrace, JobCosts, Timing
from onecurve.describe.plan import Plan
from onecurve.describe.profile import ComputeLoad, ModuleProfile, Profile, Work
from onecurve.estimate.estimator import Estimator


def profile(samples: int) -> Profile:
    load = ComputeLoad({"matrix": 10**9 * samples}, 10**6 * samples, 10, 2)
    block = ModuleProfile(("b.0", "b.1"), 1000, 1000, 4000, 4000, Work(load, load), 100 * samples, 10)
    return Profile(samples, (block,), ModuleProfile((), 10, 10, 40, 40, Work(), 0, 0), 0, 2)


DEVICE = DeviceSpec("cpu", "cpu", 10**9, 1e10, {"fp32": 1e11}, 1.0, 0.5, {}, 1e-6)
HOSTS = HostGroup(
    DEVICE, 1, 2, 2, core_splits=(CoreSplit(1, 1.0, 1.0, 1.0), CoreSplit(2, 1.8, 1.5, 1.0)), rank_overhead_bytes=0.0
)
CLUSTER = Cluster(
    (HOSTS,),
    Constants(memory_efficiency=1.0, op_launch_seconds=0.0, step_overhead_seconds=0.0, round_overhead_seconds=0.0),
)
COSTS = JobCosts({"fp32": CostTrace(profile(4), profile(8))}, 16, 10)


def test_timings_are_reproduced() -> None:
    timed = replace(COSTS, timings=(Timing("fp32", 2, 4, 0.3, 0.7), Timing("fp32", 2, 16, 1.2, 2.0)))
    for samples, expected in ((4, 1.0), (16, 3.2)):
        terms = Estimator(CLUSTER, timed).seconds(Plan(micro_batch=samples, rounds=16 // samples))
        computed = terms["forward"] + terms["backward"] + terms["host"]
        assert computed == pytest.approx(expected * 16 / samples)


def test_without_timings_the_roofline_is_used() -> None:
    terms = Estimator(CLUSTER, COSTS).seconds(Plan(micro_batch=16))
    assert terms["forward"] == pytest.approx(2 * (16e9 / 1.8e11 + 16e6 / 1.5e10))
    assert terms["host"] == pytest.approx(2 * 2 * 10 * 1e-6)


def computed(plan: str, *timings: Timing, cluster: Cluster = CLUSTER) -> float:
    terms = Estimator(cluster, replace(COSTS, timings=timings)).seconds(Plan.parse(plan))
    return terms["forward"] + terms["backward"] + terms["host"]


def factor(plan: str, *timings: Timing, cluster: Cluster = CLUSTER) -> float:
    """How many times as long as without timings."""
    return computed(plan, *timings, cluster=cluster) / computed(plan, cluster=cluster)


def timing(threads: int, samples: int, factor: float, precision: str = "fp32") -> Timing:
    """A timing that took `factor` times as long as predicted on one rank."""
    hosts = HOSTS.as_ranks(1) if threads > 1 else HOSTS
    load = profile(samples).blocks[0].work.forward
    compute = load.flops["matrix"] / hosts.device.peak("fp32") + load.bytes_moved / hosts.device.memory_bandwidth
    seconds = factor * 2 * (compute + load.operations * hosts.device.op_seconds)
    return Timing(precision, threads, samples, seconds, seconds)


def test_between_two_timings_the_factor_is_interpolated_on_a_logarithmic_axis() -> None:
    timings = timing(2, 4, 2.0), timing(2, 16, 4.0)
    assert [factor(plan, *timings) for plan in ("mb4×4", "mb8×2", "mb16")] == pytest.approx([2.0, 3.0, 4.0], rel=1e-3)
    assert [factor(plan, *timings) for plan in ("mb2×8", "mb32")] == pytest.approx([2.0, 4.0], rel=1e-3)


def test_the_timing_with_the_nearest_number_of_threads_is_used() -> None:
    timings = timing(1, 8, 2.0), timing(2, 8, 3.0)
    assert factor("mb8×2", *timings) == pytest.approx(3.0, rel=1e-3)
    assert factor("replicate2 mb8", *timings) == pytest.approx(2.0, rel=1e-3)


def test_timings_in_another_precision_do_not_count() -> None:
    both = replace(COSTS, traces={**COSTS.traces, "bf16": COSTS.traces["fp32"]}, timings=(timing(2, 8, 3.0, "bf16"),))
    plain, timed = (Estimator(CLUSTER, costs).seconds(Plan.parse("mb8×2")) for costs in (COSTS, both))
    assert plain == timed


def test_forward_and_backward_have_their_own_factor() -> None:
    slow = replace(timing(2, 16, 1.0), backward=3 * timing(2, 16, 1.0).backward)
    plain, timed = (
        Estimator(CLUSTER, replace(COSTS, timings=timings)).seconds(Plan.parse("mb16")) for timings in ((), (slow,))
    )
    assert timed["forward"] == pytest.approx(plain["forward"], rel=1e-3)
    assert timed["backward"] == pytest.approx(3 * plain["backward"], rel=1e-3)


def test_an_accelerator_is_timed_as_it_is() -> None:
    device = replace(DEVICE, kind="cuda", op_seconds=0.0)
    gpus = Cluster((HostGroup(device, 1, 2, 0, rank_overhead_bytes=0.0),), CLUSTER.constants)
    seconds = 2 * (16e9 / 1e11 + 16e6 / 1e10)
    assert computed("mb16", Timing("fp32", 1, 16, 2 * seconds, 3 * seconds), cluster=gpus) == pytest.approx(5 * seconds)


def test_compiled_blocks_take_as_long_as_compiled_ones_were_timed() -> None:
    eager, compiled = timing(2, 16, 2.0), replace(timing(2, 16, 0.5), compiled=True)
    assert factor("mb16", eager, compiled) == pytest.approx(2.0, rel=1e-3)
    assert factor("mb16 compile", eager, compiled) == pytest.approx(0.5, rel=1e-3)
    assert factor("mb16 compile", eager) == pytest.approx(2.0, rel=1e-3)
    estimator = Estimator(CLUSTER, replace(COSTS, timings=(eager, compiled)))
    both = [sum(estimator.seconds(Plan.parse(plan)).values()) for plan in ("mb16", "mb16 compile")]
    assert both[0] > 3 * both[1]
