"""A planner's advice: the best plan, its reasons, and hints, for small models on clusters that are not there."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.cluster import Cluster, DeviceSpec, HostGroup
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Precision
from onecurve.planner import job_costs, loss_test
from onecurve.planner.planner import Planner

WIDTH = 64


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(WIDTH), torch.zeros(1)


def make_job(**changes: Any) -> oc.Job:
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1)),
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.05),
        "global_batch": 16,
        "steps": 100,
    }
    return oc.Job(**(settings | changes))


def cpu_hosts(count: int = 1, memory: float = 1e9, bf16_speedup: float = 1.0) -> Cluster:
    """Hosts with one core each: slow enough that arithmetic dominates, and no tensor parallelism to trace."""
    flops = {"fp32": 1e7, "bf16": bf16_speedup * 1e7}
    device = DeviceSpec(name="core", memory=int(memory), memory_bandwidth=1e12, flops=flops, op_seconds=1e-9)
    return Cluster((HostGroup(device, count=count, rank_overhead_bytes=0.0),))


def plan(
    job: oc.Job, cluster: Cluster, precisions: tuple[Precision, ...] = ("fp32",), compare_precisions: bool = False
) -> Planner:
    planner = Planner(job, open_data(job), cluster, precisions, lambda _: None, compare_precisions=compare_precisions)
    planner.ignore_read_time()
    return planner


def test_advice_and_best_agree() -> None:
    planner = plan(make_job(), cpu_hosts(4))
    advice, best = planner.advice("train.py"), planner.best()
    assert best is not None
    assert advice.best == best
    assert best.plan.global_batch == 16
    assert best.steps == 100
    assert advice.script == "train.py"
    assert advice.cluster.startswith("4 hosts")
    assert advice.parameters == WIDTH * WIDTH + WIDTH + WIDTH + 1


def test_every_runner_up_is_slower_or_does_not_fit_and_has_a_reason() -> None:
    advice = plan(make_job(), cpu_hosts(4)).advice("train.py")
    assert advice.best is not None
    assert advice.runners_up
    for runner_up in advice.runners_up:
        assert runner_up.reason
        assert not runner_up.estimate.fits or runner_up.estimate.step >= advice.best.step * 0.98
    assert all(estimate.step >= advice.best.step for estimate in advice.frontier)


def test_a_model_without_blocks_is_not_split_into_stages_and_the_advice_says_so() -> None:
    advice = plan(make_job(), cpu_hosts(2)).advice("train.py")
    assert any("not split along 'pipeline': model: no repeated blocks" in hint for hint in advice.hints)


def test_a_model_that_cannot_be_traced_is_refused_with_the_reason() -> None:
    class UsesNumpy(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.from_numpy(x.numpy()))

    with pytest.raises(OnecurveError, match=r"RuntimeError: \.numpy\(\) is not supported"):
        plan(make_job(model=lambda: UsesNumpy(WIDTH, 1)), cpu_hosts())


def test_a_backward_that_cannot_be_traced_is_refused_with_the_reason() -> None:
    class InNumpy(torch.autograd.Function):
        @staticmethod
        def forward(_: Any, x: Tensor) -> Tensor:
            return x.clone()

        @staticmethod
        def backward(_: Any, gradient: Tensor) -> Tensor:
            return torch.from_numpy(gradient.numpy())

    class Model(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return InNumpy.apply(super().forward(x))

    with pytest.raises(OnecurveError, match=r"could not be traced on fake tensors \(.*\.numpy\(\) is not supported"):
        plan(make_job(model=lambda: Model(WIDTH, 1)), cpu_hosts())


def test_a_defect_in_onecurve_is_not_blamed_on_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(job_costs, "profile_of")
    with pytest.raises(NameError, match="profile_of"):
        plan(make_job(), cpu_hosts())


def test_bf16_is_mentioned_where_it_would_be_much_faster() -> None:
    advice = plan(make_job(), cpu_hosts(bf16_speedup=100), compare_precisions=True).advice("train.py")
    assert advice.best is not None
    assert advice.best.plan.precision == "fp32"
    assert advice.faster_precision.startswith("the same plan would be ")
    assert "--precision fp32,bf16" in advice.faster_precision


@pytest.mark.parametrize(
    ("bf16_speedup", "precisions", "compare_precisions"),
    [(100, ("fp32", "bf16"), True), (1.1, ("fp32",), True), (100, ("fp32",), False)],
    ids=["allowed", "hardly faster", "not compared"],
)
def test_bf16_is_not_mentioned_otherwise(
    bf16_speedup: float, precisions: tuple[Precision, ...], compare_precisions: bool
) -> None:
    advice = plan(make_job(), cpu_hosts(bf16_speedup=bf16_speedup), precisions, compare_precisions).advice("train.py")
    assert advice.faster_precision == ""


def test_a_precision_is_chosen_only_if_it_is_allowed() -> None:
    cluster = cpu_hosts(bf16_speedup=100)
    for precisions, chosen in ((("fp32",), "fp32"), (("fp32", "bf16"), "bf16")):
        best = plan(make_job(), cluster, precisions, compare_precisions=True).best()
        assert best is not None
        assert best.plan.precision == chosen


def test_if_nothing_fits_the_hints_say_what_would() -> None:
    wide = make_job(model=lambda: nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(20)], nn.Linear(WIDTH, 1)))
    planner = plan(wide, cpu_hosts(memory=8e5))
    advice = planner.advice("train.py")
    assert planner.best() is None
    assert advice.best is None
    assert "it needs at least" in advice.hints[0]
    assert any("it would fit on" in hint and "devices of this kind, as " in hint for hint in advice.hints)
    assert any("it would fit on devices with at least" in hint for hint in advice.hints)
    assert all("does not fit" in runner_up.reason for runner_up in advice.runners_up)


def test_the_time_to_read_data_counts_unless_it_is_ignored() -> None:
    job = make_job()
    planner = Planner(job, open_data(job), cpu_hosts(), ["fp32"], lambda _: None)
    planner.costs = replace(planner.costs, read_seconds_per_sample=10.0)
    with_reading = planner.best()
    planner.ignore_read_time()
    without = planner.best()
    assert with_reading is not None
    assert without is not None
    assert with_reading.step > 10 * without.step


def test_a_loss_that_a_run_would_refuse_is_refused() -> None:
    def centered(output: Tensor, _: Tensor) -> Tensor:
        return (output - output.mean()).square().mean(1)

    class RandomPoints(Points):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            return torch.randn(WIDTH), torch.zeros(1)

    with pytest.raises(OnecurveError, match="the value of a sample depends on the other samples"):
        plan(make_job(loss=centered, data=RandomPoints), cpu_hosts()).test_loss()


def test_a_loss_that_cannot_be_tested_on_this_host_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = plan(make_job(), cpu_hosts())
    planner.test_loss()
    assert not any("loss" in hint for hint in planner.advice("train.py").hints)
    monkeypatch.setattr(loss_test, "_MAX_FLOPS", 10.0)
    planner.test_loss()
    assert any("the loss was not tested" in hint for hint in planner.advice("train.py").hints)


def test_a_model_that_does_not_run_on_this_host_can_still_be_planned() -> None:
    class ForOtherDevice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            if not isinstance(x, FakeTensor):
                raise RuntimeError("no kernel for this device")
            return super().forward(x)

    planner = plan(make_job(model=lambda: ForOtherDevice(WIDTH, 1)), cpu_hosts())
    planner.test_loss()
    assert any("no kernel for this device" in hint for hint in planner.advice("train.py").hints)
