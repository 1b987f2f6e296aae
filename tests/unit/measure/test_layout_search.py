"""Attention and MLPs get the known column- and row-parallel layouts, whatever the names of their layers."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.model.deferred import defer_init
from onecurve.planner.completion import PlanCompleter

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))


def complete(plan: Plan, job: oc.Job) -> Plan:
    deferred = defer_init(job.model, job.seed)
    return PlanCompleter(job, open_data(job), deferred).resolve(plan).plan


def layouts_of(job: oc.Job, degree: int = 2) -> dict[str, str]:
    return complete(Plan.parse(f"tensor{degree} mb{job.global_batch}"), job).layouts


def test_fused_qkv_and_vocabulary(monkeypatch: pytest.MonkeyPatch) -> None:
    import gpt

    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match="RANK"):
        dist.init_process_group("gloo")  # torch counts it: the next group has another name, those after it have not
    assert layouts_of(gpt.job(width=16, context=32, batch=8)) == {
        "blocks.*.qkv.weight": "dim 0 in 3 parts",
        "blocks.*.qkv.bias": "dim 0 in 3 parts",
        "blocks.*.project.weight": "dim 1",
        "blocks.*.mlp.0.weight": "dim 0",
        "blocks.*.mlp.0.bias": "dim 0",
        "blocks.*.mlp.2.weight": "dim 1",
        "bytes.weight": "dim 0",
        "head.weight": "dim 0",
    }


def test_separate_qkv_and_gated_mlp_with_the_limit_of_grouped_heads() -> None:
    import llama

    job = llama.job(width=32, context=32, batch=8)
    columns = {f"layers.*.{name}.weight": "dim 0" for name in ("q", "k", "v", "gate", "up")}
    rows = {f"layers.*.{name}.weight": "dim 1" for name in ("o", "down")}
    assert layouts_of(job) == columns | rows | {"embedding.weight": "dim 0", "head.weight": "dim 0"}
    with pytest.raises(OnecurveError, match=r"tensor = 4 cannot split .*layers\.\*\.q\.weight.*try 2"):
        layouts_of(job, 4)


class Transposed(nn.Module):
    """A linear layer whose weight is transposed compared with nn.Linear."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.randn(inputs, outputs) * 0.1)
        self.shift = nn.Parameter(torch.zeros(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.matrix + self.shift


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.this, self.that = Transposed(8, 16), Transposed(16, 8)  # names that say nothing

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.that(torch.relu(self.this(x)))


def plain_job(model) -> oc.Job:
    data = [(torch.randn(4, 8), torch.zeros(4, 8)) for _ in range(8)]
    loss = lambda output, target: (output - target).square().mean((1, 2))  # noqa: E731
    return oc.Job(model=model, loss=loss, data=lambda: data, optimizer=oc.SGD(), global_batch=4, steps=2)


def test_layouts_follow_the_data_flow() -> None:
    layouts = layouts_of(plain_job(lambda: nn.Sequential(Layer(), Layer())))
    assert layouts == {"*.this.matrix": "dim 1", "*.this.shift": "dim 0", "*.that.matrix": "dim 0"}


def test_a_model_without_pairs_is_an_error() -> None:
    with pytest.raises(OnecurveError, match="nothing in this model can be split along 'tensor'"):
        layouts_of(plain_job(lambda: nn.Linear(8, 8)))


def test_layouts_of_the_plan_are_not_changed() -> None:
    job = plain_job(lambda: nn.Sequential(Layer(), Layer()))
    plan = replace(Plan.parse("tensor2 mb4"), layouts={"*.this.matrix": "dim 1"})
    assert complete(plan, job) == plan
