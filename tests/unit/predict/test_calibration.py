"""What was timed is predicted again."""

from dataclasses import replace

import pytest

from onecurve.describe.cluster import Cluster, CoreSplit, DeviceSpec, HostGroup
from onecurve.describe.constants import Constants
from onecurve.describe.costs import Costs, Timing, Trace
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Load, ModuleProfile, Profile, Work
from onecurve.predict.estimator import Estimator


def profile(samples: int) -> Profile:
    load = Load({"matrix": 10**9 * samples}, 10**6 * samples, 10, 2)
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
COSTS = Costs({"fp32": Trace(profile(4), profile(8))}, 16, 10)


def test_a_timing_is_predicted_again() -> None:
    timed = replace(COSTS, timings=(Timing("fp32", 2, 4, 0.3, 0.7), Timing("fp32", 2, 16, 1.2, 2.0)))
    for samples, expected in ((4, 1.0), (16, 3.2)):
        found = Estimator(CLUSTER, timed).seconds(Plan(micro_batch=samples, rounds=16 // samples))
        computed = found["forward"] + found["backward"] + found["host"]
        assert computed == pytest.approx(expected * 16 / samples)


def test_without_timings_the_roofline_stands() -> None:
    found = Estimator(CLUSTER, COSTS).seconds(Plan(micro_batch=16))
    assert found["forward"] == pytest.approx(2 * (16e9 / 1.8e11 + 16e6 / 1.5e10))
    assert found["host"] == pytest.approx(2 * 2 * 10 * 1e-6)
