"""Layer drop: blocks that are left out by chance are refused where all ranks must call the same blocks."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.planner.completion import PlanCompleter


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x).relu()


class Model(nn.Module):
    def __init__(self, keeps: Callable[[Tensor], object]) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(4, 4), nn.Linear(4, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.keeps = keeps

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            if self.keeps(x):
                x = block(x)
        if random.random() < 0.5 or (x > 3).all():
            x = x * 2
        return self.head(x)


def validated(x: Tensor) -> bool:
    if (x.abs() > 1e9).any():
        raise ValueError("the input is too large")
    return random.random() > 0.1


def resolve(plan: str, keeps: Callable[[Tensor], object]) -> None:
    data = [(torch.full((4,), float(i)), i % 3) for i in range(16)]
    job = oc.Job(
        model=lambda: Model(keeps),
        data=lambda: data,
        loss=oc.loss.cross_entropy,
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=1,
    )
    PlanCompleter(job, open_data(job)).resolve(Plan.parse(plan))


@pytest.mark.parametrize(
    "keeps",
    [
        lambda _: random.uniform(0, 1) > 0.1,
        lambda _: random.random() > 1e-9,
        lambda _: np.random.rand() > 0.1,
        lambda _: torch.rand(()) > 0.1,
        lambda x: x.sum() > -1e9,
        validated,
    ],
    ids=["uniform", "rarely", "numpy", "torch", "values", "validated"],
)
@pytest.mark.parametrize("plan", ["shard2 mb4", "pipeline2 mb4×2"])
def test_blocks_that_are_left_out_by_chance_are_named(plan: str, keeps: Callable[[Tensor], object]) -> None:
    with pytest.raises(OnecurveError, match=rf"leaves out blocks \(blocks.0, .*under '{plan[:5]}.*'replicate'"):
        resolve(plan, keeps)
    resolve("replicate2 mb4", keeps)


def test_other_branches_do_not_matter() -> None:
    for plan in ("shard2 mb4", "pipeline2 mb4×2", "mb8 recompute=full"):
        resolve(plan, lambda _: True)
