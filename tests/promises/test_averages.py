"""Averages of weights are those of one device under every plan, are resumed, and are what is evaluated and written."""

import json

import pytest
import torch
from safetensors.torch import load_file

import onecurve as oc
from harness import JOBS, onecurve

AVERAGED = str(JOBS / "averaged.py")


def test_check_compares_the_averages(tmp_path) -> None:
    plans = ("replicate2 mb4", "shard2 mb2×2", "tensor2 mb8", "pipeline2 mb4×2")
    words = [word for plan in plans for word in ("--plan", plan)]
    held = onecurve("check", AVERAGED, *words, cwd=tmp_path)
    assert held.returncode == 0, held.stdout + held.stderr
    broken = onecurve("check", AVERAGED, "fault=True", "--plan", "shard2 mb4", cwd=tmp_path)
    assert broken.returncode == 1, broken.stdout
    assert "average of" in broken.stdout


def test_a_run_continues_its_averages_under_another_plan(tmp_path) -> None:
    def run(*words: str) -> None:
        done = onecurve("run", AVERAGED, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr

    run("--plan", "replicate2 mb4", "--out", "whole")
    run("steps=10", "--plan", "shard2 mb4", "--out", "parts")
    run("--plan", "pipeline2 mb4×2", "--out", "parts", "--change", "steps")
    whole, parts = (load_file(tmp_path / name / "weights.safetensors") for name in ("whole", "parts"))
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-4, atol=1e-5)
    loaded = oc.load(tmp_path / "whole")
    for name, tensor in loaded.state_dict().items():
        assert torch.equal(tensor, whole[name])
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    found = oc.evaluate(tmp_path / "parts", plan="mb8")
    assert found.evaluation.loss == pytest.approx(summary["evaluation"]["loss"], rel=1e-3)
    run("--plan", "mb8", "--out", "plain", "ema=0.0001")  # almost the weights of the last step
    plain = load_file(tmp_path / "plain" / "weights.safetensors")
    assert not torch.allclose(plain["0.weight"], whole["0.weight"], rtol=1e-3)


def test_int8_quantizes_the_averages(tmp_path) -> None:
    done = onecurve("run", AVERAGED, "--plan", "mb8", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    expected = oc.evaluate(tmp_path / "run", plan="mb8").evaluation.loss
    losses = {each.kind: each.evaluation.loss for each in oc.evaluate_int8(tmp_path / "run")}
    assert losses["as trained"] == pytest.approx(expected, rel=1e-5)
    # the weights of the last step have another loss
    assert losses["weight-only"] == pytest.approx(expected, rel=0.05)
    exported = oc.export(tmp_path / "run", to="int8", script=AVERAGED)
    assert exported.exported_loss == pytest.approx(losses["weight-only"], rel=0.05)
