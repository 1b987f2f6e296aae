"""`onecurve run` as a user sees it: its processes, its run folder, and failures that are reported once."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import onecurve as oc
from harness import (
    JOBS,
    SMALL,
    descendants,
    onecurve,
    processes_with,
    started,
    steps,
    torchrun,
    wait_for_steps,
    warnings,
)
from onecurve.data.order import Order

OWN_LOOP = str(JOBS / "own_loop.py")


def test_a_run_writes_records_weights_and_plan_and_does_not_overwrite(tmp_path) -> None:
    done = onecurve("run", SMALL, "--ranks", "2", "--out", "a", "epochs=1", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "replicate2 mb4 fp32  2 cpu ranks, 21 parameters, 8 steps of 8 samples" in done.stdout
    assert "evaluation: loss" in done.stdout
    assert "weights: a/weights.safetensors, after step 8" in done.stdout
    assert "best weights: a/best.safetensors, after step 8" in done.stdout
    folder = tmp_path / "a"
    assert [record.step for record in steps(folder)] == list(range(1, 9))
    assert [record.loss for record in steps(folder, 0)] == [record.loss for record in steps(folder, 1)]
    assert all(tensor.isfinite().all() for tensor in load_file(folder / "weights.safetensors").values())

    again = onecurve("run", SMALL, "--ranks", "2", "--out", "a", "epochs=1", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert "a: this run has already ended; add --fresh" in again.stdout
    other = onecurve("run", SMALL, "--ranks", "2", "--out", "a", cwd=tmp_path)
    assert other.returncode == 1
    assert "differs in steps (steps was 1 epoch, is 2 epochs); add --change steps to continue" in other.stderr
    (tmp_path / "b" / "records").mkdir(parents=True)
    (tmp_path / "b" / "thesis.tex").touch()
    foreign = onecurve("run", SMALL, "--out", "b", "--fresh", cwd=tmp_path)
    assert "not a run's folder" in foreign.stderr
    assert (tmp_path / "b" / "thesis.tex").exists()

    by_file = onecurve("run", SMALL, "--out", "a", "--fresh", "--plan", "a/plan.toml", "--json", cwd=tmp_path)
    assert by_file.returncode == 0, by_file.stderr
    summary = json.loads(by_file.stdout)
    assert (summary["ranks"], summary["steps"], summary["plan"]) == (2, 16, "replicate2 mb4 fp32")
    assert (summary["version"], summary["ended"]) == (2, "finished")


def test_a_file_of_a_newer_version_is_refused(tmp_path) -> None:
    (tmp_path / "plan.toml").write_text("version = 2\nmicro_batch = 8\n[mesh]\nreplicate = 1\n[novelty]\nx = 1\n")
    failed = onecurve("run", SMALL, "--plan", "plan.toml", cwd=tmp_path)
    assert failed.returncode == 1
    assert (
        "plan.toml: the file has version 2, but this onecurve reads versions up to 1; upgrade onecurve" in failed.stderr
    )


def test_the_trained_weights_do_not_depend_on_the_plan(tmp_path) -> None:
    weights = {}
    for plan in ("mb8", "shard2 mb2×2"):
        done = onecurve("run", SMALL, "--plan", plan, "--out", plan, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        weights[plan] = load_file(tmp_path / plan / "weights.safetensors")
    for name, tensor in weights["mb8"].items():
        torch.testing.assert_close(tensor, weights["shard2 mb2×2"][name], rtol=1e-3, atol=1e-5)


def test_a_buffer_that_differs_between_ranks_ends_the_run_before_the_first_update(tmp_path) -> None:
    for out, options in (("proved", ()), ("unproved", ("--no-check",))):
        command = ("run", str(JOBS / "untraced_buffer.py"), "--plan", "replicate2 mb4", "--out", out, *options)
        failed = onecurve(*command, cwd=tmp_path)
        assert failed.returncode != 0
        assert "buffer 'mean' differed between the data-parallel ranks" in failed.stderr
        assert not (tmp_path / out / "weights.safetensors").exists()
    assert steps(tmp_path / "unproved") == []


def test_a_step_that_is_not_finite_on_one_rank_is_skipped_on_all(tmp_path) -> None:
    done = onecurve("run", SMALL, "nan=5", "epochs=1", "--plan", "shard2 mb4", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("not finite") == 1
    skipped = [[record.step for record in steps(tmp_path / "a", rank) if record.skipped] for rank in (0, 1)]
    assert skipped[0] == skipped[1]
    assert len(skipped[0]) == 1
    assert all(tensor.isfinite().all() for tensor in load_file(tmp_path / "a" / "weights.safetensors").values())


def test_a_run_says_that_its_last_steps_changed_nothing(tmp_path: Path) -> None:
    (last, *_) = Order([64], seed=0).samples(56, 64)
    oc.run(SMALL, [f"nan={last.offset}", "epochs=1"], plan="mb8", out=tmp_path / "a", check=False, quiet=True)
    told = [text.partition(",")[0] for text in warnings(tmp_path / "a") if "evaluation samples" not in text]
    assert told == ["the last step changed nothing"]


@pytest.mark.parametrize("plan", ["mb8", "replicate2 mb4"])
def test_a_failing_rank_is_reported_once_with_the_users_line(plan: str, tmp_path) -> None:
    failed = onecurve("run", SMALL, "raises=9", "--plan", plan, cwd=tmp_path)
    assert failed.returncode == 1
    assert failed.stderr.count("ValueError: point 9 is broken") == 2  # the message and the traceback's last line
    assert failed.stderr.count("Traceback") == 1
    assert ("rank " in failed.stderr) == (plan != "mb8")
    assert 'raise ValueError(f"point {index} is broken")' in failed.stderr


@pytest.mark.parametrize(
    ("arguments", "cause"),
    [
        (["how=raise"], "rank 1 failed: model: forward raised ValueError"),
        (["how=SIGKILL", "training_pass=1"], "rank 1 was killed"),
    ],
)
def test_the_cause_is_reported_and_not_the_lost_connection_of_another_rank(arguments, cause: str, tmp_path) -> None:
    """The other ranks wait in a collective inside forward and lose the connection before the keeper sees the cause."""
    failed = onecurve("run", str(JOBS / "failing.py"), *arguments, "--plan", "shard3 mb4", cwd=tmp_path)
    assert failed.returncode == 1
    assert cause in failed.stderr
    assert "peer" not in failed.stderr
    assert "SIGTERM" not in failed.stderr


def test_a_killed_rank_is_reported(tmp_path) -> None:
    failed = onecurve("run", SMALL, "killed=9", "--ranks", "2", cwd=tmp_path)
    assert failed.returncode == 1
    assert "was killed by SIGKILL" in failed.stderr
    assert "failed 3 times at the same step" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_early_stopping_writes_the_last_and_the_best_weights(tmp_path) -> None:
    """The loss falls, so with better=higher the first evaluation, after step 10, is the best."""
    arguments = ("epochs=8", "better=higher", "patience=2", "--plan", "shard2 mb4", "--out", "a")
    done = onecurve("run", SMALL, *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "stopped early: 30 of 64 steps" in done.stdout
    assert "weights: a/weights.safetensors, after step 30" in done.stdout
    assert "best weights: a/best.safetensors, after step 10" in done.stdout
    ten_steps = onecurve("run", SMALL, "epochs=1.25", "--ranks", "1", "--out", "b", cwd=tmp_path)
    assert ten_steps.returncode == 0, ten_steps.stderr
    last, best, expected = (
        load_file(tmp_path / name) for name in ("a/weights.safetensors", "a/best.safetensors", "b/weights.safetensors")
    )
    assert best.keys() == last.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(best[name], tensor, rtol=1e-3, atol=1e-5)
        assert not torch.allclose(last[name], tensor, rtol=1e-3, atol=1e-5)
    summary = json.loads((tmp_path / "a" / "summary.json").read_text())
    assert (summary["ended"], summary["best"]["step"]) == ("early_stopping", 10)
    assert summary["best_weights"] == "a/best.safetensors"


EXIT_STATUS = {signal.SIGINT: 130, signal.SIGTERM: 75}


@pytest.mark.parametrize(
    ("ranks", "stop_signal"),
    [(1, signal.SIGINT), (1, signal.SIGTERM), (2, signal.SIGINT), (2, signal.SIGTERM)],
)
def test_an_interrupt_ends_all_ranks_at_the_same_step(ranks: int, stop_signal: signal.Signals, tmp_path) -> None:
    arguments = ("run", SMALL, "slow=0.01", "epochs=1000", "--ranks", str(ranks), "--out", str(tmp_path / "a"))
    with started(*arguments, cwd=tmp_path) as process:
        wait_for_steps(tmp_path / "a", 4, rank=ranks - 1)
        process.send_signal(stop_signal)
        out, err = process.communicate(timeout=60)
    assert process.returncode == EXIT_STATUS[stop_signal], err
    assert err == f"{stop_signal.name}: the run ends after this step; a second signal ends it at once\n"
    assert "stopped  after step" in out
    assert f"interrupted by {stop_signal.name}: " in out
    assert json.loads((tmp_path / "a" / "summary.json").read_text())["ended"] == stop_signal.name
    assert len({len(steps(tmp_path / "a", rank)) for rank in range(ranks)}) == 1
    assert (tmp_path / "a" / "weights.safetensors").exists()
    assert not processes_with(str(tmp_path))


_SLOW_STEP = """
import time
import torch
import onecurve as oc

class Slow(torch.nn.Linear):
    def forward(self, x):
        if self.training and torch.is_grad_enabled() and len(x) == 4:
            print("in the first step", flush=True)
            time.sleep(60)
        return super().forward(x)

def job():
    data = [(torch.ones(3), 0)] * 8
    return oc.Job(model=lambda: Slow(3, 2), data=lambda: data, loss=oc.loss.cross_entropy, optimizer=oc.SGD(lr=0.1),
                  global_batch=8, steps=2)
"""


@pytest.mark.parametrize("plan", ["mb4×2", "replicate2 mb4"])
def test_ctrl_c_in_the_first_step_ends_the_run_at_once(plan: str, tmp_path) -> None:
    (tmp_path / "train.py").write_text(_SLOW_STEP)
    with started("run", "train.py", "--plan", plan, "--no-check", cwd=tmp_path) as process:
        assert any("in the first step" in line for line in process.stdout)
        begin = time.monotonic()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "SIGINT: no step is done yet, so the run ends at once" in err
    assert "Traceback" not in err
    assert time.monotonic() - begin < 10
    assert not processes_with(str(tmp_path))


@pytest.mark.parametrize(
    ("arguments", "stop_signal"),
    [((), signal.SIGINT), (("--ranks", "2"), signal.SIGTERM)],
    ids=["planning", "ranks start"],
)
def test_an_interrupt_before_training_has_the_same_exit_status(
    arguments: tuple[str, ...], stop_signal: signal.Signals, tmp_path
) -> None:
    script = tmp_path / "train.py"
    text = "import sys, time\nfrom small import job\nprint('importing', flush=True)\ntime.sleep(2)\n"
    script.write_text(text)
    with started(
        "run", "train.py", *arguments, cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(JOBS), *sys.path])
    ) as process:
        assert process.stdout.readline() == "importing\n"
        process.send_signal(stop_signal)
        _, err = process.communicate(timeout=240)
    assert process.returncode == EXIT_STATUS[stop_signal], err
    assert "Traceback" not in err


def test_ranks_do_not_outlive_their_launcher(tmp_path) -> None:
    with started("run", SMALL, "slow=0.0217", "epochs=1000", "--ranks", "2", "--out", "a", cwd=tmp_path) as process:
        wait_for_steps(tmp_path / "a", 4, rank=1)
        process.kill()
        deadline = time.monotonic() + 30
        while processes_with("slow=0.0217"):
            assert time.monotonic() < deadline
            time.sleep(0.2)


def test_under_torchrun_each_process_is_one_rank(tmp_path) -> None:
    done = torchrun(2, "-m", "onecurve", "run", SMALL, "epochs=1", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("done: 8 of 8 steps") == 1
    assert len(steps(tmp_path / "a", 1)) == 8


def test_deriving_layouts_does_not_change_the_losses(tmp_path) -> None:
    """With the same batch, seed and weights, a tensor-parallel model has the losses of the unsplit one."""
    losses = []
    for plan in ("mb16", "tensor2 mb16 sequence"):
        done = onecurve("run", str(JOBS / "vision.py"), "--plan", plan, "--out", plan[:2], cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        losses.append([record.loss for record in steps(tmp_path / plan[:2])])
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)
    assert "[layouts]" in (tmp_path / "te" / "plan.toml").read_text()


def test_a_users_own_loop_computes_the_same_numbers(tmp_path) -> None:
    one_rank = onecurve("run", SMALL, "--ranks", "1", "--json", cwd=tmp_path)
    # Under zero2, parameters stay all-gathered after an evaluation; the next step must not use these old values.
    own = torchrun(2, OWN_LOOP, "shard2 mb4 zero2", "small", "evaluate", cwd=tmp_path)
    assert own.returncode == 0, own.stderr
    lines = own.stdout.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith("ranks 2 steps 16 weights")
    assert float(lines[0].split()[-1]) == pytest.approx(json.loads(one_rank.stdout)["loss"], rel=1e-4)


def test_with_dropout_replicas_stay_bitwise_equal(tmp_path) -> None:
    own = torchrun(2, OWN_LOOP, "replicate2 mb8", "tricky", cwd=tmp_path)
    assert own.returncode == 0, own.stderr
    first, second = own.stdout.splitlines()
    assert first.startswith("ranks 2 steps 20 weights")
    assert first == second


@pytest.mark.parametrize("fault", [(), pytest.param(("rank_seeds",), marks=pytest.mark.slow)], ids=["right", "wrong"])
def test_dropout_masks_are_equal_on_all_tensor_ranks(tmp_path, fault) -> None:
    """Replicated parameters stay bitwise equal, although dropout masks are drawn inside and between split layers."""
    own = torchrun(2, OWN_LOOP, "tensor2 mb8 sequence", "dropped", *fault, cwd=tmp_path)
    assert own.returncode == 0, own.stderr
    first, second = (line.split()[5] for line in own.stdout.splitlines())
    assert (first == second) is not bool(fault)


@pytest.mark.slow
def test_in_fp16_all_ranks_use_the_same_loss_scale(tmp_path) -> None:
    done = onecurve("run", SMALL, "nan=5", "epochs=1", "--plan", "shard2 mb4 fp16", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    scales = [[record.loss_scale for record in steps(tmp_path / "a", rank)] for rank in (0, 1)]
    assert scales[0] == scales[1]
    assert scales[0][0] > scales[0][-1]


def test_no_port_is_open_to_the_network(tmp_path) -> None:
    with started("run", SMALL, "slow=0.01", "epochs=1000", "--ranks", "2", "--out", "a", cwd=tmp_path) as process:
        wait_for_steps(tmp_path / "a", 1, rank=1)
        addresses = listeners([process.pid, *descendants(process.pid)])
    assert addresses
    assert set(addresses) == {"0100007F"}  # 127.0.0.1


def listeners(pids: list[int]) -> list[str]:
    """Return the addresses, in hexadecimal, on which these processes listen."""
    inodes = set()
    for pid in pids:
        for handle in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                link = os.readlink(handle)
            except OSError:
                continue
            if link.startswith("socket:["):
                inodes.add(link[8:-1])
    addresses = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                addresses.append(fields[1].split(":")[0])
    return addresses


def test_tensorboard_shows_the_values_of_the_records(tmp_path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    done = onecurve("run", SMALL, "epochs=1", "--ranks", "1", "--track", "tensorboard", "--out", "a", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    shown = events.EventAccumulator(str(tmp_path / "a" / "tensorboard")).Reload()
    losses = [event.value for event in shown.Scalars("train/loss")]
    assert losses == pytest.approx([record.loss for record in steps(tmp_path / "a")])
    assert shown.Scalars("evaluation/loss")
