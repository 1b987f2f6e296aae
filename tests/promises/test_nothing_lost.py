"""A checkpoint is complete or absent, and a killed run continues as if it had not been interrupted."""

import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import onecurve as oc
from harness import BENCHMARKS, EXAMPLES, JOBS, SMALL, kill_all, onecurve, python, started, torchrun, wait_for_steps
from sample_files import write_jsonl

GPT = str(EXAMPLES / "gpt.py")


def run_and_kill(step: int, *arguments: str, cwd: Path) -> None:
    """Start a run, and kill all its processes at once when its records have `step` steps."""
    with started("run", SMALL, *arguments, "--out", "a", cwd=cwd) as process:
        wait_for_steps(cwd / "a", step)
        kill_all(process.pid)


def test_a_killed_run_continues_from_its_newest_valid_checkpoint(tmp_path) -> None:
    arguments = ["epochs=5", "every=4", "--plan", "shard2 mb4"]
    uninterrupted = onecurve("run", SMALL, *arguments, "--out", "uninterrupted", cwd=tmp_path)
    assert uninterrupted.returncode == 0, uninterrupted.stderr
    run_and_kill(14, "slow=0.005", *arguments, cwd=tmp_path)
    # One bit of the newest checkpoint is flipped: the one before it is used, with a warning.
    before, newest = sorted((tmp_path / "a" / "checkpoints").glob("step-*"))[-2:]
    file = newest / "rank-1.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    resumed = onecurve("run", SMALL, *arguments, "--out", "a", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "checkpoint skipped" in resumed.stdout
    assert f"resumed  from step {int(before.name.split('-')[1])}, a/checkpoints/{before.name}" in resumed.stdout
    assert not newest.exists()  # a valid one has replaced it
    expected, actual = (load_file(tmp_path / out / "weights.safetensors") for out in ("uninterrupted", "a"))
    assert all(torch.equal(actual[name], expected[name]) for name in expected)


def test_every_sample_once_over_4_then_2_then_3_ranks(tmp_path) -> None:
    """A run on files is killed on 4 ranks, killed on 2 and finished on 3. The steps that count use every sample exactly
    once. benchmarks/data_kills.py kills it 20 times, with every kind of data."""
    write_jsonl(tmp_path / "data" / "jsonl", (100, 70, 1, 130))
    oc.index(str(tmp_path / "data" / "jsonl"), processes=1)
    script, kind = str(JOBS / "ledger.py"), ["jsonl", "data"]
    assert torchrun(4, script, "a", "11", *kind, cwd=tmp_path).returncode != 0
    assert torchrun(2, script, "a", "17", *kind, cwd=tmp_path).returncode != 0
    done = torchrun(3, script, "a", "0", *kind, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for file in (tmp_path / "a").glob("ledger-*") for line in file.read_text().splitlines()]
    by_step: dict[int, dict[int, list[int]]] = {}  # step → number of ranks → ids of samples
    for line in lines:
        by_step.setdefault(line["step"], {}).setdefault(line["ranks"], []).extend(line["ids"])
    complete = {step: {ranks: ids for ranks, ids in runs.items() if len(ids) == 12} for step, runs in by_step.items()}
    assert {4, 2, 3} == {ranks for runs in complete.values() for ranks in runs}
    assert any(len(runs) > 1 for runs in complete.values())  # some steps were repeated
    for runs in complete.values():
        assert len({tuple(sorted(ids)) for ids in runs.values()}) == 1  # with the same samples, by other ranks
    assert sorted(complete) == list(range(1, 27))
    start_order = {4: 0, 2: 1, 3: 2}
    counted = [index for step in sorted(complete) for index in complete[step][max(by_step[step], key=start_order.get)]]
    # 26 steps of 12 samples are one epoch of 301 samples and 11 samples of the next.
    uses = Counter(counted)
    assert sorted(uses) == list(range(301))
    assert sum(uses.values()) == 312
    assert max(uses.values()) == 2
    assert len(set(counted[: 25 * 12])) == 300


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_save_interrupted_at_any_system_call_leaves_the_old_or_the_new(ranks: int, tmp_path) -> None:
    """Two kinds of fault at every third call; benchmarks/crash_sweep.py injects three kinds at every call."""
    script = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); import crash_sweep; torch.set_num_threads(1)\n"
        "kinds = ('SIGKILL', 'ENOSPC')\n"
        "print(json.dumps(crash_sweep.sweep(crash_sweep.Onecurve(), int(sys.argv[2]), kinds, 3, lambda _: None)))\n"
    )
    done = python("-c", script, str(BENCHMARKS), str(ranks), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["bad"] == []
    assert result["not_told"] == 0
    assert set(result["left"]["SIGKILL"]) == {"old", "new"}


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_files_are_synced_before_the_commit(tmp_path) -> None:
    script = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); import crash_sweep; torch.set_num_threads(1)\n"
        "print(json.dumps(crash_sweep.call_order(2)))\n"
    )
    done = python("-c", script, str(BENCHMARKS), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = [tuple(call) for call in json.loads(done.stdout)]
    staging = next(path for call, path in calls if call == "mkdir")
    commit = next(n for n, (call, path) in enumerate(calls) if call == "rename" and path == staging)
    root = f"{staging}/root.json"
    files = [f"{staging}/rank-{rank}.{suffix}" for rank in range(2) for suffix in ("json", "safetensors")]
    for file in (root, *files):
        written = max(n for n, call in enumerate(calls) if call == ("write", file))
        synced = calls.index(("fsync", file))
        folder_synced = next(n for n, call in enumerate(calls) if n > synced and call == ("fsync", staging))
        assert written < synced < folder_synced < commit
    first_root_write = calls.index(("write", root))
    assert all(calls.index(("fsync", file)) < first_root_write for file in files)
    assert ("fsync", "checkpoints") in calls[commit:]
    removed = [n for n, (call, _) in enumerate(calls) if call in ("unlink", "unlinkat", "rmdir")]
    assert min(removed) > commit + calls[commit:].index(("fsync", "checkpoints"))


EIGHT_PLANS = [
    "mb8 fp64", "replicate2 mb4 fp64", "shard2 mb4 fp64", "replicate2.shard2 mb2 fp64", "tensor2 mb8 fp64",
    "pipeline2 mb2x4 fp64", "pipeline2.tensor2 mb4x2 fp64", "replicate2 mb(3,1)x2 fp64",
]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "plans"),
    [(2, ["shard2 mb4 fp64", "tensor2 mb8 fp64"]), pytest.param(4, EIGHT_PLANS, marks=pytest.mark.slow)],
    ids=["two", "eight"],
)
@pytest.mark.timeout(1500)
def test_resume_from_each_plan_under_each_plan(ranks: int, plans: list[str], tmp_path) -> None:
    job = [GPT, "width=16", "context=16", "batch=8"]
    arguments = ("pairs.jsonl", *job, "--", *plans)
    done = torchrun(ranks, str(JOBS / "continued.py"), *arguments, cwd=tmp_path, timeout=1200)
    assert done.returncode == 0, done.stderr
    pairs = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert len(pairs) == len(plans) ** 2
    assert [pair for pair in pairs if not pair["holds"]] == []
    assert [pair for pair in pairs if pair["from"] == pair["into"] and not pair["same"]] == []


def test_a_real_object_store(tmp_path) -> None:
    """Checkpoints go to an S3 server (moto); a run is killed and resumes from there."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    import fsspec

    log = tmp_path / "server.log"  # not a pipe: the server would block when nobody reads its many lines
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with log.open("w") as lines, subprocess.Popen(command, stdout=lines, stderr=lines) as server:
        try:
            while "Running on" not in log.read_text():
                assert server.poll() is None, log.read_text()
                time.sleep(0.1)
            url = log.read_text().split("Running on")[1].split()[0]
            keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": url}
            files = fsspec.filesystem("s3", key="key", secret="secret", endpoint_url=url)
            files.mkdir("bucket")
            job = ["epochs=2", "every=4", "to=s3://bucket/run"]
            oc.run(SMALL, job[:2], plan="mb8", out=tmp_path / "uninterrupted", check=False, quiet=True)
            with started(
                "run", SMALL, *job, "slow=0.02", "--ranks", "2", "--out", "a", cwd=tmp_path, **keys
            ) as process:
                while not any(path.endswith("root.json") for path in files.find("bucket/run", refresh=True)):
                    assert process.poll() is None, process.stderr.read()
                    time.sleep(0.2)
                kill_all(process.pid)
            done = onecurve("run", SMALL, *job, "--plan", "mb8", "--out", "a", cwd=tmp_path, **keys)
            assert done.returncode == 0, done.stderr
            assert "resumed  from step" in done.stdout
            assert "s3://bucket/run/step-" in done.stdout
            retained = [path for path in files.find("bucket/run", refresh=True) if path.endswith("root.json")]
            assert len(retained) == 2
            exported = onecurve("export", "a", "--json", cwd=tmp_path, **keys)
            assert json.loads(exported.stdout)["step"] == 16, exported.stderr
        finally:
            server.kill()
    expected, actual = (load_file(tmp_path / out / "weights.safetensors") for out in ("uninterrupted", "a"))
    for name, tensor in expected.items():
        torch.testing.assert_close(actual[name], tensor, rtol=1e-4, atol=1e-6)
