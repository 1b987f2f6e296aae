"""The profile's figures against closed forms, and against what a real run keeps."""

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
def test_llama_3_405b_equals_the_closed_forms() -> None:
    width, depth, heads, kv_heads, hidden, words = one_rank.MODELS["llama3-405b"].values()
    length = 8192
    job = one_rank.make_job("llama3-405b", depth, length, batch=16)
    found = profile_of(TracedModel(job, open_data(job)), samples=1)
    matrices = 2 * width**2 + 2 * width * (width // heads * kv_heads) + 3 * width * hidden
    assert found.parameters == depth * (matrices + 2 * width) + 2 * words * width + width == 405_853_388_800
    matmuls = 2 * length * (depth * matrices + words * width)
    attention = 4 * length**2 * width * depth
    assert found.forward_flops("matrix") == matmuls
    assert found.forward_flops("attention") == attention
    assert found.flops == 3 * matmuls + attention * 7 // 2  # backward computes the scores once more
    assert found.optimizer_bytes == 2 * 4 * found.parameters
    assert [len(block.names) for block in found.blocks] == [depth]


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
def test_kept_activations_are_those_of_a_real_run(script: str, arguments: list[str]) -> None:
    job = load_job(ROOT / script, tuple(arguments))
    data = open_data(job)
    found = profile_of(TracedModel(job, data), samples=4)
    model, micro = job.model(), data.micro(0, 4)
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        loss = objective_of(job.loss)(micro.forward(model), micro).sum
    assert found.activation_bytes == pytest.approx(sum(kept.values()), rel=0.03)
    assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert loss.isfinite()
