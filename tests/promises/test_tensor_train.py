"""Tensor trains train under every axis, are saved, loaded and exported."""

import pytest
import torch
from safetensors.torch import load_file

import onecurve as oc
from harness import JOBS, onecurve

TENSOR_TRAIN = str(JOBS / "tensor_train.py")


def check(plans: tuple[str, ...], cwd) -> None:
    words = [word for plan in plans for word in ("--plan", plan)]
    held = onecurve("check", TENSOR_TRAIN, *words, cwd=cwd)
    assert held.returncode == 0, held.stdout + held.stderr


def test_check_holds_on_two_ranks(tmp_path) -> None:
    check(("mb4×2", "replicate2 mb4", "shard2 mb2×2", "tensor2 mb8", "pipeline2 mb4×2"), tmp_path)


@pytest.mark.slow
def test_check_holds_on_four_ranks(tmp_path) -> None:
    check(("replicate2 shard2 mb2", "shard4 mb2", "shard2 tensor2 mb4", "pipeline2 shard2 mb2×2"), tmp_path)


def test_a_run_is_loaded_and_exported(tmp_path) -> None:
    done = onecurve("run", TENSOR_TRAIN, "--plan", "shard2 mb4", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    exported = onecurve("export", "run", "--out", "model.safetensors", cwd=tmp_path)
    assert exported.returncode == 0, exported.stderr
    weights, loaded = load_file(tmp_path / "model.safetensors"), oc.load(tmp_path / "run")
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, weights[name])
    assert "blocks.0.mlp.2.cores.2" in weights
