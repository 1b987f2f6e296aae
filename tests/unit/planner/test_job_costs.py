"""The costs of a job: what is traced, what is refused and why, and that onecurve's own defects are not refusals."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.data.training_data import open_data
from onecurve.describe.costs import JobCosts
from onecurve.describe.profile import Collective
from onecurve.planner import tensor_layouts, traced_model
from onecurve.planner.job_costs import costs_of
from onecurve.planner.traced_model import TracedModel

WIDTH = 8


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(torch.relu(self.up(x)))


class SetsStrides(Layer):
    """Uses an operation that distributed tensors do not have."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.as_strided(x, (len(x), 1), (x.stride(0), 1))


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(WIDTH), torch.zeros(WIDTH)


def costs(max_tensor_degree: int = 1, **changes: Any) -> JobCosts:
    settings = {
        "model": lambda: nn.Sequential(Layer(), Layer(), Layer()),
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.05),
        "global_batch": 16,
        "steps": 10,
    }
    job = oc.Job(**(settings | changes))
    return costs_of(TracedModel(job, open_data(job)), ["fp32"], max_tensor_degree)


def test_two_micro_batches_are_traced_and_the_larger_costs_twice_as_much() -> None:
    trace = costs().traces["fp32"]
    assert (trace.small.samples, trace.large.samples) == (4, 8)
    assert trace.large.flops == 2 * trace.small.flops
    assert trace.small.parameters == 3 * (2 * 2 * WIDTH * WIDTH + 3 * WIDTH)
    assert (trace.tensor2, trace.sequence2) == (None, None)


def test_a_global_batch_of_one_sample_is_traced() -> None:
    trace = costs(global_batch=1).traces["fp32"]
    assert (trace.small.samples, trace.large.samples) == (1, 1)


def test_the_chain_of_blocks_is_part_of_the_costs() -> None:
    job_costs = costs()
    assert job_costs.block_chain.kinds == (0, 0, 0)
    assert len(job_costs.block_chain.blocks) == 3
    assert job_costs.refused_axes == {}
    assert job_costs.read_seconds_per_sample > 0
    assert (job_costs.global_batch, job_costs.steps) == (16, 10)


def test_one_tensor_rank_of_two_has_half_of_the_split_parameters() -> None:
    job_costs = costs(max_tensor_degree=2)
    assert job_costs.tensor_degrees == (2,)
    assert job_costs.layouts["*.up.weight"] == "dim 0"
    full, half = job_costs.traces["fp32"].large.blocks[0], job_costs.traces["fp32"].tensor2.blocks[0]
    split = 2 * 2 * WIDTH * WIDTH + 2 * WIDTH  # both weights and the bias of `up`
    assert full.parameters - half.parameters == split // 2
    assert half.work.flops == full.work.flops // 2
    assert [collective.kind for collective in half.work.collectives] == ["all_reduce", "all_reduce"]


def test_a_model_without_blocks_refuses_the_pipeline_axis() -> None:
    job_costs = costs(model=lambda: nn.Linear(WIDTH, WIDTH))
    assert "no repeated blocks" in job_costs.refused_axes["pipeline"]
    assert job_costs.block_chain.blocks == ()


def test_a_refused_axis_names_the_operation_and_the_module() -> None:
    job_costs = costs(max_tensor_degree=2, model=lambda: nn.Sequential(Layer(), SetsStrides()))
    reason = job_costs.refused_axes["tensor"]
    assert "operation aten.as_strided.default in module '1': RuntimeError: as_strided not supported" in reason
    assert job_costs.tensor_degrees == ()
    assert job_costs.traces["fp32"].tensor2 is None


def test_a_model_with_nothing_to_split_refuses_the_tensor_axis() -> None:
    class Scale(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    job_costs = costs(max_tensor_degree=2, model=lambda: nn.Sequential(Scale(), Scale()))
    assert "nothing in this model can be split" in job_costs.refused_axes["tensor"]


def test_a_defect_in_the_pipeline_trace_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(traced_model, "trace_dataflow")
    with pytest.raises(NameError, match="trace_dataflow"):
        costs()


def test_a_defect_in_the_layout_search_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_layouts, "record_calls", lambda *_: [object()])
    with pytest.raises(AttributeError, match="'object' object has no attribute 'name'"):
        costs(max_tensor_degree=2)


class WithNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


def test_batch_norm_allows_one_round_and_synchronizes_over_the_data_ranks() -> None:
    model = lambda: nn.Sequential(WithNorm(), WithNorm())  # noqa: E731
    job_costs = costs(model=model)
    assert job_costs.single_round
    (block,) = job_costs.traces["fp32"].small.blocks
    size = 8 * WIDTH  # sums and squares, four bytes each
    assert block.work.collectives == (
        Collective("all_reduce", size, "forward", "data"),
        Collective("all_reduce", size, "backward", "data"),
    )
    (block,) = costs(model=model, batch_norm="local").traces["fp32"].small.blocks
    assert block.work.collectives == ()


def test_an_optimizer_that_may_need_full_parameters_is_recognized() -> None:
    class WholeTensor(torch.optim.Optimizer):
        """Not one of the optimizers that are known to work element by element."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.1})

    own = lambda named: WholeTensor([parameter for _, parameter in named])  # noqa: E731
    assert costs(optimizer=own).needs_full_parameters
    assert not costs().needs_full_parameters
