"""A checkpoint is whole or absent; a run that was struck goes on as if nothing had been."""

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

TESTS = Path(__file__).parents[1]
SMALL = str(TESTS / "jobs" / "small.py")
GPT = str(TESTS.parent / "examples" / "gpt.py")


def python(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **environment}
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=1200, check=False, env=variables)


def onecurve(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "onecurve", *arguments, cwd=cwd, **environment)


def torchrun(ranks: int, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    start = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return python(*start, *arguments, cwd=cwd)


def crash_sweep():
    spec = importlib.util.spec_from_file_location("crash_sweep", TESTS.parent / "benchmarks" / "crash_sweep.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["crash_sweep"] = module
    spec.loader.exec_module(module)
    return module


def run_and_kill(step: int, *arguments: str, cwd: Path) -> None:
    """Start a run, and kill all its processes at once when so many steps are in the records."""
    command = [sys.executable, "-m", "onecurve", "run", SMALL, *arguments, "--out", "a"]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        path = cwd / "a" / "records" / "rank-0.jsonl"
        deadline = time.monotonic() + 60
        while not path.exists() or path.read_text().count('"kind":"step"') < step:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for pid in [*descendants(process.pid), process.pid]:
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    children = subprocess.run(["pgrep", "-P", str(pid)], text=True, capture_output=True, check=False).stdout.split()
    return [each for child in map(int, children) for each in (child, *descendants(child))]


def test_a_run_goes_on_from_where_it_was_struck(tmp_path) -> None:
    shared = ["epochs=5", "every=4"]
    whole = onecurve("run", SMALL, *shared, "--plan", "shard2 mb4", "--out", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr
    run_and_kill(14, "slow=0.005", *shared, "--plan", "shard2 mb4", cwd=tmp_path)
    # The newest checkpoint gets a damaged bit: the one before it is taken, and said so.
    before, newest = sorted((tmp_path / "a" / "checkpoints").glob("step-*"))[-2:]
    file = newest / "rank-1.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    resumed = onecurve("run", SMALL, *shared, "--plan", "shard2 mb4", "--out", "a", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "checkpoint passed over" in resumed.stdout
    assert f"resumed  from step {int(before.name.split('-')[1])}, a/checkpoints/{before.name}" in resumed.stdout
    assert not newest.exists()  # a sound one has taken its place
    right, found = (load_file(tmp_path / out / "weights.safetensors") for out in ("whole", "a"))
    assert all(torch.equal(found[name], right[name]) for name in right)


def test_every_sample_once_over_4_then_2_then_3_ranks(tmp_path) -> None:
    """Killed under 4 ranks, killed under 2, finished by 3: the steps that count took every sample exactly once."""
    script = str(TESTS / "jobs" / "ledger.py")
    assert torchrun(4, script, "a", "11", cwd=tmp_path).returncode != 0
    assert torchrun(2, script, "a", "17", cwd=tmp_path).returncode != 0
    done = torchrun(3, script, "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for file in (tmp_path / "a").glob("ledger-*") for line in file.read_text().splitlines()]
    taken: dict[int, dict[int, list[int]]] = {}
    for line in lines:
        taken.setdefault(line["step"], {}).setdefault(line["ranks"], []).extend(line["ids"])
    whole = {step: {ranks: ids for ranks, ids in lives.items() if len(ids) == 12} for step, lives in taken.items()}
    assert {4, 2, 3} == {ranks for lives in whole.values() for ranks in lives}
    assert any(len(lives) > 1 for lives in whole.values())  # steps were done again
    for lives in whole.values():
        assert len({tuple(sorted(ids)) for ids in lives.values()}) == 1  # by other ranks, the same samples
    assert sorted(whole) == list(range(26))
    last = {4: 0, 2: 1, 3: 2}
    counted = [number for step in sorted(whole) for number in whole[step][max(taken[step], key=last.get)]]
    # 26 steps of 12 are one pass over 301 samples and 11 of the next.
    times = Counter(counted)
    assert sorted(times) == list(range(301))
    assert sum(times.values()) == 312
    assert max(times.values()) == 2
    assert len(set(counted[: 25 * 12])) == 300


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_save_struck_at_any_call_leaves_the_old_or_the_new(ranks: int, tmp_path) -> None:
    """Here at every third call and by two means; benchmarks/crash_sweep.py strikes at every call, by three."""
    script = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); import crash_sweep; torch.set_num_threads(1)\n"
        "kinds = ('SIGKILL', 'ENOSPC')\n"
        "print(json.dumps(crash_sweep.sweep(crash_sweep.Onecurve(), int(sys.argv[2]), kinds, 3, lambda _: None)))\n"
    )
    done = python("-c", script, str(TESTS.parent / "benchmarks"), str(ranks), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["bad"] == []
    assert found["not_told"] == 0
    assert set(found["left"]["SIGKILL"]) == {"old", "new"}


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_what_is_written_is_synced_before_it_is_said(tmp_path) -> None:
    script = (
        "import sys, json, torch; sys.path.insert(0, sys.argv[1]); import crash_sweep; torch.set_num_threads(1)\n"
        "print(json.dumps(crash_sweep.call_order(2)))\n"
    )
    done = python("-c", script, str(TESTS.parent / "benchmarks"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    calls = [tuple(call) for call in json.loads(done.stdout)]
    staging = next(what for call, what in calls if call == "mkdir")
    commit = next(n for n, (call, what) in enumerate(calls) if call == "rename" and what == staging)
    root = f"{staging}/root.json"
    files = [f"{staging}/rank-{rank}.{suffix}" for rank in range(2) for suffix in ("json", "safetensors")]
    for file in (root, *files):
        written = max(n for n, call in enumerate(calls) if call == ("write", file))
        synced = calls.index(("fsync", file))
        named = next(n for n, call in enumerate(calls) if n > synced and call == ("fsync", staging))
        assert written < synced < named < commit
    first_of_root = calls.index(("write", root))
    assert all(calls.index(("fsync", file)) < first_of_root for file in files)
    assert ("fsync", "checkpoints") in calls[commit:]
    removed = [n for n, (call, _) in enumerate(calls) if call in ("unlink", "unlinkat", "rmdir")]
    assert min(removed) > commit + calls[commit:].index(("fsync", "checkpoints"))


EIGHT = [
    "mb8 fp64", "replicate2 mb4 fp64", "shard2 mb4 fp64", "replicate2.shard2 mb2 fp64", "tensor2 mb8 fp64",
    "pipeline2 mb2x4 fp64", "pipeline2.tensor2 mb4x2 fp64", "replicate2 mb(3,1)x2 fp64",
]  # fmt: skip


@pytest.mark.parametrize(
    ("ranks", "plans"),
    [(2, ["shard2 mb4 fp64", "tensor2 mb8 fp64"]), pytest.param(4, EIGHT, marks=pytest.mark.slow)],
    ids=["two", "eight"],
)
@pytest.mark.timeout(1500)
def test_from_each_plan_into_each_other(ranks: int, plans: list[str], tmp_path) -> None:
    job = [GPT, "width=16", "context=16", "batch=8"]
    done = torchrun(ranks, str(TESTS / "jobs" / "continued.py"), "found.jsonl", *job, "--", *plans, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert len(found) == len(plans) ** 2
    assert [pair for pair in found if not pair["holds"]] == []
    assert [pair for pair in found if pair["from"] == pair["into"] and not pair["same"]] == []


@pytest.mark.slow
def test_a_real_object_store(tmp_path) -> None:
    """moto's server speaks S3; a run is struck there and goes on from there."""
    pytest.importorskip("s3fs")
    pytest.importorskip("moto")
    import fsspec

    with subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"], stderr=subprocess.PIPE, text=True
    ) as server:
        try:
            assert server.stderr is not None
            line = next(line for line in server.stderr if "Running on" in line)
            url = line.split("Running on")[1].split()[0]
            keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_ENDPOINT_URL": url}
            files = fsspec.filesystem("s3", key="key", secret="secret", endpoint_url=url)
            files.mkdir("bucket")
            job = ["epochs=2", "every=4", "to=s3://bucket/run"]
            whole = onecurve("run", SMALL, *job[:2], "--out", "whole", cwd=tmp_path)
            assert whole.returncode == 0, whole.stderr
            command = [sys.executable, "-m", "onecurve", "run", SMALL, *job, "slow=0.02", "--ranks", "2", "--out", "a"]
            with subprocess.Popen(command, cwd=tmp_path, env={**os.environ, **keys}) as struck:
                while not any(path.endswith("root.json") for path in files.find("bucket/run", refresh=True)):
                    time.sleep(0.05)
                for pid in [*descendants(struck.pid), struck.pid]:
                    os.kill(pid, signal.SIGKILL)
            done = onecurve("run", SMALL, *job, "--out", "a", cwd=tmp_path, **keys)
            assert done.returncode == 0, done.stderr
            assert "resumed  from step" in done.stdout
            assert "s3://bucket/run/step-" in done.stdout
            last = [path for path in files.find("bucket/run", refresh=True) if path.endswith("root.json")]
            assert len(last) == 2
            exported = onecurve("export", "a", "--json", cwd=tmp_path, **keys)
            assert json.loads(exported.stdout)["step"] == 16, exported.stderr
        finally:
            server.kill()
    right, found = (load_file(tmp_path / out / "weights.safetensors") for out in ("whole", "a"))
    for name, tensor in right.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-6)
