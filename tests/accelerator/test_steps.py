"""Steps on the simulated accelerator compute what the host computes, and never make the host wait."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from harness import JOBS, onecurve

PLANS = ["replicate2 mb4×2", "shard2 mb4×2", "shard2 mb4×2 zero2", "tensor2 mb8×2", "pipeline2 mb4×4"]
STEPS = str(JOBS / "simulated_steps.py")


def run(folder: Path, plan: str, *options: str, devices: int = 4) -> list[dict[str, Any]]:
    """What each rank has found."""
    ended = onecurve(
        "run", STEPS, str(folder), *options, "--plan", plan, cwd=folder, FAKE_ACCELERATOR_DEVICES=str(devices)
    )
    assert ended.returncode == 0, ended.stderr
    return [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]


@cache
def losses_on_the_host(folder: Path, *options: str) -> list[float]:
    folder.mkdir()
    return run(folder, "mb16", *options, devices=0)[0]["losses"]


@pytest.fixture(scope="module")
def host_losses(tmp_path_factory) -> list[float]:
    return losses_on_the_host(tmp_path_factory.mktemp("host") / "run", "steps=10")


@pytest.mark.parametrize(
    "plan", [pytest.param(plan, marks=[] if plan in PLANS[-1:] else pytest.mark.slow) for plan in PLANS]
)
def test_losses_are_the_hosts_and_no_step_waits(tmp_path, host_losses, plan: str) -> None:
    for found in run(tmp_path, plan, "steps=10"):
        assert found["losses"] == pytest.approx(host_losses, rel=1e-5)
        assert not any(found["waits"][1:])
        assert min(found["queued"]) > 0.9
        assert not found["unordered"]
        assert not found["mixed"]


@pytest.mark.slow
@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize(("optimizer", "most"), [("SGD", 0), ("RMSprop", 1), ("LAMB", 1), ("LARS", 1)])
def test_other_optimizers_wait_at_most_once(tmp_path, plan: str, optimizer: str, most: int) -> None:
    for found in run(tmp_path, plan, f"optimizer={optimizer}"):
        assert max(map(len, found["waits"][1:])) <= most, found["waits"]
        assert not found["unordered"]


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["shard2 mb4×2", "replicate2 mb4×2"])
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_batch_norm_in_16_bits(tmp_path, plan: str, precision: str) -> None:
    options = ("model=convolutions", "steps=20")
    expected = losses_on_the_host(tmp_path / "host", *options)
    for found in run(tmp_path, f"{plan} {precision}", *options):
        assert found["losses"] == pytest.approx(expected, rel=0.02)
        assert set(found["buffers"]) == {"torch.float32"}
        assert not any(found["waits"][1:]) or precision == "fp16"


@pytest.mark.slow
def test_dropout_under_pipeline_and_tensor(tmp_path) -> None:
    found = run(tmp_path, "pipeline2·tensor2 mb4×4", "dropout=0.1")
    assert len(found) == 4
    for rank in found:
        assert len(rank["losses"]) == 6
        assert not any(rank["waits"][1:])
    assert found[0]["losses"] == found[-1]["losses"]
