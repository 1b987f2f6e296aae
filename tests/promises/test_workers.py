"""`mode="async"`: with one worker, a run computes what one device does; with several, each step counts once."""

import json
import os
import signal
from pathlib import Path

import pytest
from safetensors.torch import load_file

from harness import BENCHMARKS, EXAMPLES, JOBS, onecurve, python, started, steps, wait_for_steps

JOB, CTR = str(JOBS / "workers.py"), str(EXAMPLES / "ctr.py")
ASYNC = ("params=local://2", "mode=async")


def run(script: str, cwd: Path, out: str, *words: str, plan: str = "mb8x2 fp64") -> str:
    ended = onecurve("run", script, *words, "--plan", plan, "--no-check", "--out", out, cwd=cwd)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def losses(folder: Path) -> dict[int, float]:
    return {record.step: record.loss for record in steps(folder) if not record.skipped}


def assert_equal(cwd: Path, *outs: str) -> None:
    first, second = (losses(cwd / out) for out in outs)
    assert first.keys() == second.keys()
    assert max(abs(first[step] - second[step]) for step in first) < 1e-12
    weights, others = (load_file(cwd / out / "weights.safetensors") for out in outs)
    assert max((weights[name] - others[name]).abs().max().item() for name in weights) < 1e-12


def test_one_worker_computes_what_one_device_does(tmp_path: Path) -> None:
    """Also with dropout, clipping and two parameter groups, if a step is not finite and skipped, and if a run is
    continued in the other mode."""
    run(JOB, tmp_path, "together", "nan_at=164")
    shown = run(JOB, tmp_path, "worker", *ASYNC, "nan_at=164")
    assert any(record.skipped for record in steps(tmp_path / "worker"))
    assert "the loss curve depends on timing, and nothing proves it" in shown
    assert_equal(tmp_path, "together", "worker")
    run(JOB, tmp_path, "worker", "nan_at=164", "steps=40", "--change", "steps")
    run(JOB, tmp_path, "together", *ASYNC, "nan_at=164", "steps=40", "--change", "steps")
    assert_equal(tmp_path, "together", "worker")


def test_one_worker_computes_what_one_device_does_with_tables(tmp_path: Path) -> None:
    run(CTR, tmp_path, "together", "steps=20", plan="mb256 fp64")
    run(CTR, tmp_path, "worker", "steps=20", *ASYNC, plan="mb256 fp64")
    assert_equal(tmp_path, "together", "worker")


def test_each_step_counts_once_when_workers_are_killed() -> None:
    ended = python(str(BENCHMARKS / "async_faults.py"), "--count", "1", "--json", timeout=200)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert found["counted_once"] == 1
    assert found["worst_wait_ms"] < 1000


@pytest.mark.slow  # test_one_worker_computes_what_one_device_does continues a run too
def test_a_run_that_is_stopped_continues(tmp_path: Path) -> None:
    words = ("run", JOB, *ASYNC, "workers=2", "steps=4000", "every=100000", "--plan", "mb16", "--out", "out")
    with started(*words, cwd=tmp_path) as process:
        wait_for_steps(tmp_path / "out", 5)
        os.kill(process.pid, signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    stopped = max(losses(tmp_path / "out"))
    shown = run(JOB, tmp_path, "out", *ASYNC, f"steps={stopped + 10}", "every=100000", "--change", "steps", plan="mb16")
    assert f"resumed  from step {stopped}" in shown


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["norm=batch"], "forward changes buffers '1.running_mean'"),
        (["fails_at=20"], "sample 20 is broken"),
    ],
)
def test_what_workers_cannot_do_ends_the_run(tmp_path: Path, words: list[str], expected: str) -> None:
    ended = onecurve("run", JOB, *ASYNC, *words, "steps=60", "--plan", "mb16", cwd=tmp_path)
    assert ended.returncode == 1
    assert expected in ended.stderr


def test_a_loop_of_the_users_own_is_refused(tmp_path: Path) -> None:
    program = (
        f"import onecurve as oc, runpy; oc.prepare(runpy.run_path({JOB!r})['job'](params='local://2', mode='async'))"
    )
    ended = python("-c", program, cwd=tmp_path)
    assert "with mode='async' workers compute the steps; train this job with `onecurve run`" in ended.stderr


def test_plans_for_several_ranks_are_refused(tmp_path: Path) -> None:
    ended = onecurve("run", JOB, *ASYNC, "--ranks", "2", cwd=tmp_path)
    assert ended.returncode == 1
    assert "each worker computes whole steps alone; use a plan for one rank, such as mb16" in ended.stderr
