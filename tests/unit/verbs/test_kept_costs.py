"""A job is traced once for all questions about its plans."""

import multiprocessing
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup
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
    return Cluster((HostGroup(device, count=count, rank_overhead_bytes=0.0),))


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
    first = Planner(job, open_data(job), hosts(4), ["fp32"], lambda _: None)
    KeptCosts(hosts(4), ["fp32"]).keep(first.costs)
    expected = [Planner(job, open_data(job), hosts(n), ["fp32"], lambda _: None, costs=first.costs) for n in (4, 3)]
    monkeypatch.setattr(Planner, "_trace", lambda _: pytest.fail("it is traced again"))
    for count, known in zip((4, 3), expected, strict=True):
        costs = KeptCosts(hosts(count), ["fp32"]).load()
        assert Planner(job, open_data(job), hosts(count), ["fp32"], lambda _: None, costs=costs).best() == known.best()
    assert KeptCosts(hosts(4), ["fp32", "bf16"]).load() is None


def test_outside_of_a_start_nothing_is_kept():
    assert KeptCosts(hosts(4), ["fp32"]).load() is None
