"""`onecurve run` as a user meets it: processes of its own, a run folder, failures and stops that are told once."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

JOBS = Path(__file__).parents[1] / "jobs"
SMALL = str(JOBS / "small.py")


def onecurve(*arguments: str, cwd: Path, module: str = "onecurve") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=cwd, text=True, capture_output=True, timeout=120, check=False)


def records(folder: Path, rank: int) -> list[dict]:
    return [json.loads(line) for line in (folder / "records" / f"rank-{rank}.jsonl").read_text().splitlines()]


def steps(folder: Path, rank: int) -> list[dict]:
    return [record for record in records(folder, rank) if record["kind"] == "step"]


def test_a_run_writes_records_weights_and_plan_and_does_not_overwrite(tmp_path) -> None:
    done = onecurve("run", SMALL, "--ranks", "2", "--out", "a", "epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "replicate2 mb4 fp32  2 cpu ranks, 21 parameters, 8 steps" in done.stdout
    assert "evaluation: loss" in done.stdout
    assert "weights: a/weights.safetensors" in done.stdout
    folder = tmp_path / "a"
    assert [record["step"] for record in steps(folder, 0)] == list(range(8))
    assert [r["loss"] for r in steps(folder, 0)] == [r["loss"] for r in steps(folder, 1)]
    assert all(tensor.isfinite().all() for tensor in load_file(folder / "weights.safetensors").values())

    again = onecurve("run", SMALL, "--ranks", "2", "--out", "a", "epochs=1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "a: this run has ended already; add --fresh" in again.stdout
    other = onecurve("run", SMALL, "--ranks", "2", "--out", "a", cwd=tmp_path)
    assert other.returncode == 1
    assert "differs in steps (steps was 8, is 16)" in other.stderr
    (tmp_path / "b" / "records").mkdir(parents=True)
    (tmp_path / "b" / "thesis.tex").touch()
    foreign = onecurve("run", SMALL, "--out", "b", "--fresh", cwd=tmp_path)
    assert "not a run's folder" in foreign.stderr
    assert (tmp_path / "b" / "thesis.tex").exists()

    by_file = onecurve("run", SMALL, "--out", "a", "--fresh", "--plan", "a/plan.toml", "--json", cwd=tmp_path)
    assert by_file.returncode == 0, by_file.stderr
    summary = json.loads(by_file.stdout)
    assert (summary["ranks"], summary["steps"], summary["plan"]) == (2, 16, "replicate2 mb4 fp32")


def test_what_is_trained_does_not_depend_on_the_plan(tmp_path) -> None:
    found = {}
    for plan in ("mb8", "shard2 mb2×2"):
        done = onecurve("run", SMALL, "--plan", plan, "--out", plan, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found[plan] = load_file(tmp_path / plan / "weights.safetensors")
    for name, tensor in found["mb8"].items():
        torch.testing.assert_close(tensor, found["shard2 mb2×2"][name], rtol=1e-3, atol=1e-5)


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(tmp_path) -> None:
    done = onecurve("run", SMALL, "nan=5", "epochs=1", "--plan", "shard2 mb4", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not finite, update skipped") == 1
    skipped = [[record["step"] for record in steps(tmp_path / "a", rank) if record["skipped"]] for rank in (0, 1)]
    assert skipped[0] == skipped[1]
    assert len(skipped[0]) == 1
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "a" / "weights.safetensors").values())


@pytest.mark.parametrize("plan", ["mb8", "replicate2 mb4"])
def test_a_failing_rank_is_told_once_with_the_users_line(plan: str, tmp_path) -> None:
    failed = onecurve("run", SMALL, "raises=9", "--plan", plan, cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.count("ValueError: point 9 is broken") == 2  # the message and the traceback's last line
    assert failed.stderr.count("Traceback") == 1
    assert ("rank " in failed.stderr) == (plan != "mb8")
    assert 'raise ValueError(f"point {index} is broken")' in failed.stderr


def test_a_killed_rank_is_told(tmp_path) -> None:
    failed = onecurve("run", SMALL, "killed=9", "--ranks", "2", cwd=tmp_path)
    assert failed.returncode == 1
    assert "was killed by SIGKILL" in failed.stderr
    assert "Traceback" not in failed.stderr


@pytest.mark.parametrize(("ranks", "sent"), [(1, signal.SIGINT), (2, signal.SIGINT), (2, signal.SIGTERM)])
def test_an_interrupt_ends_all_ranks_at_one_step(ranks: int, sent: signal.Signals, tmp_path) -> None:
    command = [sys.executable, "-m", "onecurve", "run", SMALL, "slow=0.01", "epochs=1000", "--ranks", str(ranks)]
    with subprocess.Popen(
        [*command, "--out", "a"], cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        wait_for_records(tmp_path / "a", ranks - 1)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert err == ""
    assert "stopped  after step" in out
    assert len({len(steps(tmp_path / "a", rank)) for rank in range(ranks)}) == 1
    assert (tmp_path / "a" / "weights.safetensors").exists()
    assert not running("slow=0.01")


def test_ranks_do_not_outlive_their_launcher(tmp_path) -> None:
    command = [sys.executable, "-m", "onecurve", "run", SMALL, "slow=0.02", "epochs=1000", "--ranks", "2", "--out", "a"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        wait_for_records(tmp_path / "a", 1)
        process.kill()
    deadline = time.monotonic() + 30
    while running("slow=0.02"):
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wait_for_records(folder: Path, rank: int) -> None:
    path = folder / "records" / f"rank-{rank}.jsonl"
    deadline = time.monotonic() + 60
    while not path.exists() or path.read_text().count("\n") < 5:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def running(word: str) -> list[str]:
    lines = subprocess.run(["ps", "-ewwo", "args"], text=True, capture_output=True, check=True).stdout.splitlines()
    return [line for line in lines if word in line and "ps -ewwo" not in line]


def torchrun(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return onecurve("--nproc-per-node", "2", *arguments, cwd=cwd, module="torch.distributed.run")


def test_under_torchrun_it_is_one_of_the_ranks(tmp_path) -> None:
    done = torchrun("-m", "onecurve", "run", SMALL, "epochs=1", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: 8 of 8 steps") == 1
    assert len(steps(tmp_path / "a", 1)) == 8


def test_layouts_found_on_the_way_leave_no_trace(tmp_path) -> None:
    """The same batch, seed and weights: the first loss of a model cut along tensor is that of the whole one."""
    losses = []
    for plan in ("mb8", "tensor2 mb8 sequence"):
        arguments = ["width=16", "context=32", "batch=8", "steps=3", "--plan", plan, "--out", plan[:2]]
        done = onecurve("run", str(JOBS.parents[1] / "examples" / "gpt.py"), *arguments, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        losses.append([record["loss"] for record in steps(tmp_path / plan[:2], 0)])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert "[layouts]" in (tmp_path / "te" / "plan.toml").read_text()


def test_who_keeps_the_loop_gets_the_same_numbers(tmp_path) -> None:
    alone = onecurve("run", SMALL, "--ranks", "1", "--json", cwd=tmp_path)
    # zero2 keeps gathered parameters after an evaluation: the next step must not trip over them.
    kept = torchrun(str(JOBS / "kept_loop.py"), "shard2 mb4 zero2", "small", "evaluate", cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr
    lines = kept.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("ranks 2 steps 16 weights")
    assert float(lines[0].split()[-1]) == pytest.approx(json.loads(alone.stdout)["loss"], rel=1e-4)


def test_with_dropout_replicas_stay_equal_to_the_last_bit(tmp_path) -> None:
    kept = torchrun(str(JOBS / "kept_loop.py"), "replicate2 mb8", "tricky", cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr
    one, other = kept.stdout.splitlines()
    assert one.startswith("ranks 2 steps 20 weights")
    assert one == other


@pytest.mark.parametrize("fault", [(), pytest.param(("rank_seeds",), marks=pytest.mark.slow)], ids=["right", "wrong"])
def test_dropout_does_not_differ_along_tensor(tmp_path, fault) -> None:
    """What is whole on both ranks stays equal to the last bit, though masks are drawn in and between cut layers."""
    kept = torchrun(str(JOBS / "kept_loop.py"), "tensor2 mb8 sequence", "dropped", *fault, cwd=tmp_path)
    assert kept.returncode == 0, kept.stderr
    one, other = (line.split()[5] for line in kept.stdout.splitlines())
    assert (one == other) is not bool(fault)


@pytest.mark.slow
def test_in_fp16_all_ranks_keep_one_scale(tmp_path) -> None:
    done = onecurve("run", SMALL, "nan=5", "epochs=1", "--plan", "shard2 mb4 fp16", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scales = [[record["loss_scale"] for record in steps(tmp_path / "a", rank)] for rank in (0, 1)]
    assert scales[0] == scales[1]
    assert scales[0][0] > scales[0][-1]


def test_no_port_is_open_to_the_network(tmp_path) -> None:
    command = [sys.executable, "-m", "onecurve", "run", SMALL, "slow=0.01", "epochs=1000", "--ranks", "2", "--out", "a"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_records(tmp_path / "a", 1)
            found = listeners(descendants(process.pid))
        finally:
            process.send_signal(signal.SIGINT)
    assert found
    assert set(found) == {"0100007F"}  # 127.0.0.1


def descendants(pid: int) -> set[int]:
    found = {pid}
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if parent in found:
            found.add(int(entry.name))
    return found


def listeners(pids: set[int]) -> list[str]:
    """The addresses, in hexadecimal, on which these processes listen."""
    inodes = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                link = os.readlink(handle)
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                found.append(fields[1].split(":")[0])
    return found


def test_tensorboard_shows_what_the_records_say(tmp_path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = onecurve("run", SMALL, "epochs=1", "--ranks", "1", "--tensorboard", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = events.EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    losses = [event.value for event in shown.Scalars("train/loss")]
    assert losses == pytest.approx([record["loss"] for record in steps(tmp_path / "a", 0)])
    assert shown.Scalars("evaluation/loss")
