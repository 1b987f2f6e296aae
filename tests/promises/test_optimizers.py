"""Muon and Adafactor compute on parts of parameters what they compute on full ones, and continue under another plan."""

import pytest
import torch
from safetensors.torch import load_file

from harness import JOBS, onecurve

OPTIMIZERS = str(JOBS / "optimizers.py")
TWO = ("mb4×2", "replicate2 mb4", "shard2 mb2×2", "tensor2 mb8", "pipeline2 mb4×2")


def check(kind: str, plans: tuple[str, ...], cwd) -> None:
    words = [word for plan in plans for word in ("--plan", plan)]
    held = onecurve("check", OPTIMIZERS, f"kind={kind}", *words, cwd=cwd)
    assert held.returncode == 0, held.stdout + held.stderr


@pytest.mark.parametrize("kind", ["muon", "adafactor"])
def test_check_holds_on_two_ranks(kind: str, tmp_path) -> None:
    check(kind, TWO, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["muon", "adafactor"])
def test_check_holds_on_four_ranks(kind: str, tmp_path) -> None:
    check(kind, ("replicate2 shard2 mb2", "shard4 mb2", "shard2 tensor2 mb4", "pipeline2 shard2 mb2×2"), tmp_path)


def test_check_finds_muon_on_shards(tmp_path) -> None:
    broken = onecurve("check", OPTIMIZERS, "fault=True", "--plan", "shard2 mb4", cwd=tmp_path)
    assert broken.returncode == 1, broken.stdout
    assert "DIFFERS" in broken.stdout


@pytest.mark.parametrize("kind", ["muon", "adafactor"])
def test_a_run_continues_under_another_plan(kind: str, tmp_path) -> None:
    def run(*words: str) -> None:
        done = onecurve("run", OPTIMIZERS, f"kind={kind}", *words, "--no-check", cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    # in float64, also where Muon would compute in bfloat16, in which a change of the last digit grows
    run("--plan", "mb8 fp64", "--out", "whole")
    run("steps=10", "--plan", "shard2 mb4 fp64", "--out", "parts")
    run("--plan", "mb8 fp64", "--out", "parts", "--change", "steps")
    whole, parts = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-5, atol=1e-6)
