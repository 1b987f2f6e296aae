"""A job is traced once for all questions about its plans."""

import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup
from onecurve.describe.costs import JobCosts
from onecurve.device.scratch import Scratch, new_scratch, use_scratch
from onecurve.planner.planner import Planner
from onecurve.verbs.kept_costs import KeptCosts


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(8), torch.zeros(1)


def hosts(count: int) -> Cluster:
    device = DeviceSpec(name="core", memory=10**9, memory_bandwidth=1e12, flops={"fp32": 1e7}, op_seconds=1e-9)
    return Cluster((HostGroup(device, count, 2, 2, rank_overhead_bytes=0.0),))


def planner(job: oc.Job, cluster: Cluster, costs: JobCosts | None = None) -> Planner:
    """One that does not count the time to read data, which is measured each time."""
    planner = Planner(job, open_data(job), cluster, ["fp32"], lambda _: None, costs=costs)
    planner.ignore_read_time()
    return planner


@pytest.fixture
def _scratch() -> Iterator[None]:
    before = dict(multiprocessing.current_process()._config)  # type: ignore[attr-defined]
    folder = Scratch(new_scratch())
    use_scratch(folder.path)
    yield
    multiprocessing.current_process()._config.update({"tempdir": None, **before})  # type: ignore[attr-defined]
    folder.remove()


@pytest.mark.usefixtures("_scratch")
def test_costs_that_were_kept_give_the_same_plan_without_a_trace(monkeypatch: pytest.MonkeyPatch):
    job = oc.Job(
        model=lambda: nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)),
        loss=oc.loss.mse,
        data=Points,
        optimizer=oc.AdamW(lr=0.05),
        global_batch=16,
        steps=10,
    )
    traced = {count: planner(job, hosts(count)) for count in (4, 3)}
    assert traced[4].costs.traces["fp32"].tensor2
    KeptCosts(hosts(4), ["fp32"]).keep(traced[4].costs)
    monkeypatch.setattr(Planner, "_trace", lambda _: pytest.fail("it is traced again"))
    for count, known in traced.items():
        costs = KeptCosts(hosts(count), ["fp32"]).load()
        assert costs == traced[4].costs
        assert planner(job, hosts(count), costs).best() == known.best()
    assert KeptCosts(hosts(4), ["fp32", "bf16"]).load() is None


def test_outside_of_a_start_nothing_is_kept():
    KeptCosts(hosts(4), ["fp32"]).keep(JobCosts({}, 8, 10))
    assert KeptCosts(hosts(4), ["fp32"]).load() is None
