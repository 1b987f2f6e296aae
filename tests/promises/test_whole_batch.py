"""A loss over the whole batch is that of one device under every plan."""

import json

import pytest
import torch
from safetensors.torch import load_file

from harness import JOBS, onecurve

WHOLE_BATCH = str(JOBS / "whole_batch.py")
TWO = ("mb24", "mb6×4", "replicate2 mb(9,3)×2", "shard2 mb6×2", "shard2 mb6×2 reduce=round", "tensor2 mb12×2")


def check(*words: str, plans: tuple[str, ...], cwd) -> None:
    done = onecurve("check", WHOLE_BATCH, *words, *(w for plan in plans for w in ("--plan", plan)), cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


def test_check_holds_for_rounds_and_ranks(tmp_path) -> None:
    check(plans=TWO, cwd=tmp_path)
    check("kind=labels", plans=("mb6×4", "replicate2 mb6×2", "shard2 mb12"), cwd=tmp_path)  # batch norm, targets


@pytest.mark.slow
def test_check_holds_on_four_ranks(tmp_path) -> None:
    check(plans=("replicate2 shard2 mb3×2", "shard4 mb6", "replicate2 tensor2 mb6×2", "replicate4 mb6"), cwd=tmp_path)
    check("kind=labels", plans=("replicate2 shard2 mb6", "shard4 mb3×2"), cwd=tmp_path)


def test_check_finds_that_a_rank_has_only_its_own_negatives(tmp_path) -> None:
    broken = onecurve("check", WHOLE_BATCH, "fault=True", "--plan", "replicate2 mb12", cwd=tmp_path)
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert "DIFFERS" in broken.stdout


def test_a_pipeline_is_refused(tmp_path) -> None:
    refused = onecurve("run", WHOLE_BATCH, "--plan", "pipeline2 mb6×4", cwd=tmp_path)
    assert refused.returncode != 0
    assert "two passes, which a pipeline does not run" in refused.stderr


def test_evaluations_and_weights_do_not_depend_on_the_plan(tmp_path) -> None:
    weights, losses = [], []
    for number, plan in enumerate(("mb24", "shard2 mb6×2")):
        words = ("kind=labels", "--plan", plan, "--out", str(number))
        done = onecurve("run", WHOLE_BATCH, *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        weights.append(load_file(tmp_path / str(number) / "weights.safetensors"))
        losses.append(json.loads((tmp_path / str(number) / "summary.json").read_text())["evaluation"]["loss"])
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)  # batch norm has seen one round, or two
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.isfinite(tensor).all() for tensor in weights[1].values())
    found = [onecurve("evaluate", "0", "--plan", plan, "--json", cwd=tmp_path) for plan in ("mb24", "replicate2 mb4×3")]
    one, other = (json.loads(each.stdout)["evaluation"]["loss"] for each in found)
    assert other == pytest.approx(one, rel=1e-5) == pytest.approx(losses[0], rel=1e-5)
