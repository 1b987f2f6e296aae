"""Timings of a small model on this device, and when there are none."""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import onecurve as oc
from onecurve.data.training_data import TrainingData, open_data
from onecurve.describe.cluster import Cluster
from onecurve.describe.costs import JobCosts, Timing
from onecurve.device.device import local_cluster, local_cpu
from onecurve.model.deferred import defer_init
from onecurve.planner import timing
from onecurve.planner.job_costs import costs_of
from onecurve.planner.timing import time_compiled, time_model
from onecurve.planner.traced_model import TracedModel

WIDTH = 8


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(WIDTH), torch.zeros(1)


class FailsOnRealTensors(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        if type(x) is Tensor:
            raise RuntimeError("out of memory")
        return super().forward(x)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Time every micro-batch size once; use the same cores and threads afterwards as before."""
    monkeypatch.setattr(timing, "_REPETITIONS", 1)
    monkeypatch.setattr(timing, "_MIN_SECONDS", 0.0)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores, threads = os.sched_getaffinity(0), torch.get_num_threads()
    yield
    os.sched_setaffinity(0, cores)
    torch.set_num_threads(threads)


def traced(**changes: Any) -> tuple[oc.Job, TrainingData, JobCosts]:
    settings = {
        "model": lambda: nn.Linear(WIDTH, 1),
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.05),
        "global_batch": 16,
        "steps": 10,
    }
    job = oc.Job(**(settings | changes))
    data = open_data(job)
    return job, data, costs_of(TracedModel(job, data), ["fp32", "bf16"], 1)


def with_memory(memory: int) -> Cluster:
    cluster = local_cluster()
    group = cluster.groups[0]
    return replace(cluster, groups=(replace(group, device=replace(group.device, memory=memory)),))


def timings(cluster: Cluster, **changes: Any) -> tuple[Timing, ...]:
    job, data, costs = traced(**changes)
    return time_model(job, data, defer_init(job.model, job.seed), local_cpu(), cluster, costs, ["fp32", "bf16"])


def test_timings_have_positive_seconds_for_each_precision_thread_count_and_size() -> None:
    cluster = local_cluster()
    measured = timings(cluster)
    assert all(timing.forward > 0 and timing.backward > 0 for timing in measured)
    keys = {(timing.precision, timing.threads, timing.samples) for timing in measured}
    threads = {1, cluster.cores}
    assert keys == {(precision, count, n) for precision in ("fp32", "bf16") for count in threads for n in (2, 8)}
    assert len(measured) == len(keys)


def test_the_cores_and_threads_are_given_back() -> None:
    allowed = os.sched_getaffinity(0)
    timings(local_cluster())
    assert os.sched_getaffinity(0) == allowed
    assert torch.get_num_threads() == len(allowed)


def test_a_model_that_is_too_large_is_not_timed_and_needs_no_memory() -> None:
    job, data, costs = traced()
    deferred = defer_init(job.model, job.seed)
    assert time_model(job, data, deferred, local_cpu(), with_memory(100), costs, ["fp32"]) == ()
    assert isinstance(deferred.module.weight, FakeTensor)


def test_only_micro_batches_that_fit_are_timed() -> None:
    job, data, costs = traced()
    small, large = costs.traces["fp32"].small, costs.traces["fp32"].large
    per_sample = (large.activation_bytes - small.activation_bytes) / (large.samples - small.samples)
    state = 8 * small.parameters + small.activation_bytes - per_sample * small.samples
    cluster = with_memory(int((state + 5 * per_sample) / 0.4))  # two samples fit, eight do not
    measured = time_model(job, data, defer_init(job.model, 0), local_cpu(), cluster, costs, ["fp32"])
    assert {timing.samples for timing in measured} == {2}


def test_a_model_that_fails_on_the_device_is_predicted_without_timings(caplog: pytest.LogCaptureFixture) -> None:
    allowed = os.sched_getaffinity(0)
    assert timings(local_cluster(), model=lambda: FailsOnRealTensors(WIDTH, 1)) == ()
    assert "could not be timed on this device" in caplog.text
    assert os.sched_getaffinity(0) == allowed


@pytest.mark.timeout(120)
def test_compiled_blocks_are_timed_without_the_time_to_compile_them() -> None:
    class Blocks(nn.Sequential):
        def __init__(self) -> None:
            blocks = (nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(2))
            super().__init__(*blocks, nn.Linear(WIDTH, 1))

    job, data, _ = traced(model=Blocks)
    module = Blocks()
    found = time_compiled(job, module, {"fp32": {n: data.micro(0, n) for n in (2, 8)}}, local_cpu())
    assert [(each.precision, each.samples, each.compiled) for each in found] == [("fp32", 2, True), ("fp32", 8, True)]
    assert all(0 < each.forward < 0.5 for each in found)


def test_a_model_that_cannot_be_compiled_has_no_such_timings() -> None:
    job, data, _ = traced()
    broken = FailsOnRealTensors(WIDTH, 1)
    assert time_compiled(job, broken, {"fp32": {2: data.micro(0, 2)}}, local_cpu()) == []
