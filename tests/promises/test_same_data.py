"""Every plan, start, rank and host of a run trains on the same data, or the run is refused before its first step."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from harness import JOBS, onecurve, steps, warnings

SPLIT, LABELS = str(JOBS / "random_split.py"), str(JOBS / "label_order.py")


@pytest.mark.parametrize("script", [SPLIT, LABELS], ids=["random_split", "label_order"])
def test_starts_plans_and_a_resume_train_the_same(script: str, tmp_path: Path) -> None:
    for out, plan, words in (
        ("one", "mb8 fp64", []),
        ("resumed", "mb4×2 fp64", ["steps=4"]),
        ("resumed", "replicate2 mb4 fp64", ["--change", "steps"]),
    ):
        done = onecurve("run", script, *words, "--plan", plan, "--out", out, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert not any("training data" in text for text in warnings(tmp_path / out))
    one, resumed = (load_file(tmp_path / out / "weights.safetensors") for out in ("one", "resumed"))
    for name, weights in resumed.items():
        torch.testing.assert_close(weights, one[name], rtol=0, atol=1e-12)


def test_ranks_of_torchrun_with_other_hash_seeds_are_refused(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        world = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": "2"}
        meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29641", "GLOO_SOCKET_IFNAME": "lo"}
        environment = {**os.environ, **world, **meeting, "PYTHONHASHSEED": str(rank)}
        command = [sys.executable, "-m", "onecurve", "run", LABELS, "--plan", "replicate2 mb4", "--out", "a"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        ranks.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
    outputs = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [1, 1], outputs
    for output in outputs:
        assert "data: dataset[" in output
        assert "on rank 0 (" in output
        assert "The hash seeds differ" in output
    assert not (tmp_path / "a" / "records").exists()


def test_a_host_that_lists_a_folder_in_another_order_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "classes"
    folder.mkdir()
    for number in range(7):
        (folder / f"class-{number}").touch()
    hosts = []
    for name, order in (("h0", {}), ("h1", {"REVERSE": "1"})):
        command = [sys.executable, "-m", "onecurve", "run", LABELS, f"folder={folder}", "--hosts", "2", "--out", "a"]
        environment = {**os.environ, "SLURMD_NODENAME": name, "OMP_NUM_THREADS": "1", **order}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        command += ["--plan", "replicate2 mb4"]
        hosts.append(subprocess.Popen(command, cwd=tmp_path, env=environment, **pipes))
    outputs = [host.communicate(timeout=120)[0] for host in hosts]
    assert all(host.returncode for host in hosts)
    refusal = next(output for output in outputs if "does not fit: data: dataset[" in output)
    assert re.search(r"target [06] on host h[01] .*, [06] on host h[01] ", refusal)
    assert "os.listdir" in refusal
    assert not (tmp_path / "a" / "records").exists()


def test_an_evaluation_on_training_samples_is_reported_in_the_records(tmp_path: Path) -> None:
    words = ("parts=48,16", "evaluation_parts=16,48", "--plan", "mb8", "--out", "a")
    done = onecurve("run", SPLIT, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert any(
        "32 of the 48 evaluation samples are in the training data too" in text for text in warnings(tmp_path / "a")
    )
    assert len(steps(tmp_path / "a")) == 8
