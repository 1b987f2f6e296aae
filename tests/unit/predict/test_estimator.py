from dataclasses import replace

import pytest

from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup
from onecurve.describe.costs import Costs, Trace
from onecurve.describe.plan import Plan
from onecurve.describe.profile import Load, ModuleProfile, Profile, Work
from onecurve.predict.estimator import Estimator

WORK = Work(Load({"matrix": 10**9}, 10**6, 10), Load({"matrix": 10**9}, 10**6, 10), ())
PROFILE = Profile(4, (), ModuleProfile((), 100, 100, 400, 400, WORK, 1000, 0), 0, 2)
COSTS = Costs({"fp32": Trace(PROFILE, replace(PROFILE, samples=8))}, 8, 10)


def hourly(groups: tuple[HostGroup, ...], plan: str) -> float | None:
    return Estimator(Cluster(groups), COSTS).estimate(Plan.parse(plan)).hourly


def test_accelerators_are_paid_for_one_by_one_and_hosts_as_a_whole() -> None:
    gpu = HostGroup(DeviceSpec("d", "cuda", 10**10, 1e12, {"fp32": 1e14}), 2, 8, price_per_hour=3.0)
    cpu = HostGroup(DeviceSpec("c", "cpu", 10**10, 1e10, {"fp32": 1e11}), 3, 4, 4, price_per_hour=0.5)
    assert hourly((gpu,), "replicate4 mb2") == pytest.approx(4 * 3.0)
    assert hourly((cpu,), "mb8") == pytest.approx(0.5)
    assert hourly((cpu,), "replicate4 mb2") == pytest.approx(2 * 0.5)
    dearer = replace(gpu, count=1, price_per_hour=5.0)
    assert hourly((replace(gpu, count=1), dearer), "replicate8 mb1") == pytest.approx(8 * 3.0)
    assert hourly((replace(gpu, price_per_hour=None),), "mb8") is None
