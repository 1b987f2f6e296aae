"""The profile equals closed-form counts, and its activations those that a real run saves."""

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from onecurve.data.training_data import open_data
from onecurve.job.objective import objective_of
from onecurve.job.script import load_job
from onecurve.planner.job_profile import profile_of
from onecurve.planner.traced_model import TracedModel

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import one_rank

ROOT = Path(__file__).parents[3]


@pytest.mark.timeout(60)
def test_llama_3_405b_equals_closed_form_counts() -> None:
    width, depth, heads, kv_heads, hidden, words = one_rank.MODELS["llama3-405b"].values()
    length = 8192
    job = one_rank.make_job("llama3-405b", depth, length, batch=16)
    profile = profile_of(TracedModel(job, open_data(job)), samples=1)
    matrices = 2 * width**2 + 2 * width * (width // heads * kv_heads) + 3 * width * hidden
    assert profile.parameters == depth * (matrices + 2 * width) + 2 * words * width + width == 405_853_388_800
    matmuls = 2 * length * (depth * matrices + words * width)
    attention = 4 * length**2 * width * depth
    assert profile.forward_flops("matrix") == matmuls
    assert profile.forward_flops("attention") == attention
    assert profile.flops == 3 * matmuls + attention * 7 // 2  # backward recomputes the attention scores
    assert profile.optimizer_bytes == 2 * 4 * profile.parameters
    assert [len(block.names) for block in profile.blocks] == [depth]


@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("examples/gpt.py", ["width=32", "depth=3"]),
        ("examples/llama.py", ["width=32", "depth=3"]),
        ("examples/resnet.py", ["width=8"]),
        ("tests/jobs/vision.py", []),
        ("tests/jobs/towers.py", []),
    ],
)
def test_activation_bytes_equal_those_of_a_real_run(script: str, arguments: list[str]) -> None:
    job = load_job(ROOT / script, tuple(arguments))
    data = open_data(job)
    profile = profile_of(TracedModel(job, data), samples=4)
    model, micro_batch = job.model(), data.micro(0, 4)
    model_storages = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    saved: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in model_storages:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = objective_of(job.loss)(micro_batch.forward(model), micro_batch).sum
    assert profile.activation_bytes == pytest.approx(sum(saved.values()), rel=0.03)
    assert profile.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert loss.isfinite()
