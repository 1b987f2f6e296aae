"""Layouts of blocks that contain blocks of their own."""

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.planner import tensor_layouts
from onecurve.planner.tensor_layouts import derive_layouts
from onecurve.planner.traced_model import TracedModel


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class Stage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_a_large_block_is_searched_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    job = oc.Job(
        model=lambda: nn.Sequential(Stage(), Stage()),
        loss=oc.loss.mse,
        data=lambda: [(torch.zeros(8), torch.zeros(8))] * 8,
        optimizer=oc.SGD(lr=0.1),
        global_batch=8,
        steps=1,
    )
    traced = TracedModel(job, open_data(job))
    assert traced.blocks == ["0", "1"]
    searched = []
    block_layouts = tensor_layouts.LayoutSearch.block_layouts

    def record(search, block, inside):
        searched.append(type(block.module).__name__)
        return block_layouts(search, block, inside)

    monkeypatch.setattr(tensor_layouts.LayoutSearch, "block_layouts", record)
    whole = derive_layouts(traced, 2)
    monkeypatch.setattr(tensor_layouts, "_MAX_MATRIX_GROUPS", 2)
    assert derive_layouts(traced, 2) == whole
    assert len(whole.layouts) == 9  # of each layer: two matrices and one bias
    assert searched == ["Stage", "Layer"]  # equal blocks are searched once
