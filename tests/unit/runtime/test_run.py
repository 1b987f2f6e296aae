"""A run on one rank, in this process: what it refuses, what it saves, and where its time goes."""

import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

import onecurve as oc
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.store import step_of
from onecurve.runs.lock import RunLock


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x = torch.full((3,), index / 64)
        return x, x.sum()[None]


def make_job(**changes: Any) -> oc.Job:
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.05),
        "global_batch": 8,
        "steps": 4,
    }
    return oc.Job(**(settings | changes))


def saved_steps(out: Path) -> list[int]:
    return [step_of(name) for name in LocalStore(out / "checkpoints").names()]


def test_step_on_a_manual_run_is_refused_with_the_fix() -> None:
    with oc.prepare(make_job(), "mb8", backward="mine") as run:
        batch = next(iter(run))
        with pytest.raises(oc.OnecurveError, match=r"backward='mine'.*run\.backward\(loss\) and run\.update\(name\)"):
            run.step(batch)


def test_backward_and_update_on_an_automatic_run_are_refused_with_the_fix() -> None:
    with oc.prepare(make_job(), "mb8") as run:
        for call in (lambda: run.backward(torch.zeros(8, requires_grad=True)), run.update):
            with pytest.raises(oc.OnecurveError, match=r"run\.step\(batch\), or prepare it with backward='mine'"):
                call()


def test_evaluate_without_evaluation_data_is_refused_with_the_fix() -> None:
    with oc.prepare(make_job(), "mb8") as run, pytest.raises(oc.OnecurveError, match=r"Job\(evaluate="):
        run.evaluate()


def test_leaving_the_block_saves_where_the_training_stands(tmp_path: Path) -> None:
    with oc.prepare(make_job(), "mb8", out=tmp_path) as run:
        for batch in run:
            run.step(batch)
            run.checkpoint()
            if batch.step == 3:
                break
    assert saved_steps(tmp_path) == [3]
    with oc.prepare(make_job(), "mb8", out=tmp_path) as run:
        assert run.first_step == 3
        assert "from step 3" in run.resumed
        assert [batch.step for batch in run] == [4]


def test_an_exception_in_the_block_saves_nothing_and_frees_the_folder(tmp_path: Path) -> None:
    with suppress(ZeroDivisionError), oc.prepare(make_job(), "mb8", out=tmp_path) as run:
        for batch in run:
            run.step(batch)
            raise ZeroDivisionError
    assert saved_steps(tmp_path) == []
    RunLock(tmp_path).release()


def test_checkpoints_are_saved_when_they_are_due(tmp_path: Path) -> None:
    job = make_job(steps=5, save=oc.Save(every=2, last=9))
    with oc.prepare(job, "mb8", out=tmp_path) as run:
        for batch in run:
            run.step(batch)
            run.checkpoint()
    assert saved_steps(tmp_path) == [2, 4, 5]


def test_the_best_evaluation_is_saved(tmp_path: Path) -> None:
    job = make_job(steps=4, evaluate=oc.Evaluate(Points, every=1), save=oc.Save(every=100, last=9))
    with oc.prepare(job, "mb8", out=tmp_path) as run:
        for batch in run:
            run.step(batch)
            if batch.step == 2:
                run.evaluate()
            run.checkpoint()
    assert saved_steps(tmp_path) == [2, 4]


def falling_loss(**save: object) -> oc.Job:
    """The first evaluation, after step 2, is the best."""
    evaluate = oc.Evaluate(Points, every=2, better="higher")
    return make_job(steps=6, evaluate=evaluate, save=oc.Save(every=100, **save))


def train_until(job: oc.Job, out: Path, last: int) -> dict[str, Tensor]:
    """Train until a step; return the weights of the best evaluation."""
    with oc.prepare(job, "mb8", out=out) as run:
        for batch in run:
            run.step(batch)
            if run.evaluation_due(batch.step):
                run.evaluate()
            run.checkpoint()
            if batch.step == last:
                break
        run.save_best(out / "best.safetensors")
    return load_file(out / "best.safetensors")


def test_the_best_weights_are_those_of_the_best_evaluation_also_after_a_resume(tmp_path: Path) -> None:
    expected = train_until(falling_loss(), tmp_path / "two", 2)
    found = train_until(falling_loss(), tmp_path / "six", 4)
    resumed = train_until(falling_loss(), tmp_path / "six", 6)
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)
        assert torch.equal(resumed[name], tensor)


def test_best_weights_that_were_not_kept_are_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(oc.OnecurveError, match=r"best evaluation, at step 2, were not kept.*Save\(best=True\)"):
        train_until(falling_loss(best=False), tmp_path, 4)
    with (
        oc.prepare(make_job(), "mb8") as run,
        pytest.raises(oc.OnecurveError, match="no evaluation had a finite value"),
    ):
        run.save_best(tmp_path / "best.safetensors")


def test_a_loop_that_never_calls_checkpoint_gets_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with oc.prepare(make_job(), "mb8", out=tmp_path) as run:
        for batch in run:
            run.step(batch)
    warnings = capsys.readouterr().err.splitlines()
    assert len(warnings) == 1
    assert "run.checkpoint() was never called" in warnings[0]
    assert "call it after every step" in warnings[0]


def test_a_loop_that_calls_checkpoint_or_has_no_folder_gets_no_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (tmp_path, None):
        with oc.prepare(make_job(), "mb8", out=out) as run:
            for batch in run:
                run.step(batch)
                if out is not None:
                    run.checkpoint()
    assert capsys.readouterr().err == ""


def test_the_seconds_of_a_step_add_up_to_the_wall_time_between_steps(tmp_path: Path) -> None:
    job = make_job(evaluate=oc.Evaluate(Points, every=1), save=oc.Save(every=1), steps=5)
    reports, ends = [], []
    with oc.prepare(job, "mb8", out=tmp_path) as run:
        for batch in run:
            reports.append(run.step(batch))
            ends.append(time.perf_counter())
            run.evaluate()
            run.checkpoint()
            time.sleep(0.05)  # the loop's own time counts as "other"
    later = [report.seconds for report in reports[1:]]
    total = sum(sum(seconds.values()) for seconds in later)
    assert total == pytest.approx(ends[-1] - ends[0], abs=0.04)
    assert all(seconds["other"] >= 0.05 for seconds in later)
    assert all(seconds["evaluation"] > 0 and seconds["checkpoint"] > 0 for seconds in later)
    assert reports[0].seconds["evaluation"] == 0


def test_an_evaluation_is_due_at_multiples_of_every_and_at_the_end() -> None:
    with oc.prepare(make_job(steps=7, evaluate=oc.Evaluate(Points, every=3)), "mb8") as run:
        assert [step for step in range(1, 8) if run.evaluation_due(step)] == [3, 6, 7]
    with oc.prepare(make_job(), "mb8") as run:
        assert not any(run.evaluation_due(step) for step in range(4))


def test_a_manual_run_yields_batches_on_the_device_and_updates_by_name() -> None:
    job = make_job(optimizer={"0": oc.SGD(lr=0.1), "2": oc.SGD(lr=0.1)}, steps=1)
    with oc.prepare(job, "mb4×2", backward="mine") as run:
        before = [parameter.detach().clone() for parameter in run.model.parameters()]
        for batch in run:
            for micro in batch.rounds:
                error = (run.model(micro.inputs) - micro.target).square().sum()
                run.backward(oc.Weighted(error, micro.samples))
            assert run.update("0").samples == 8
        after = list(run.model.parameters())
        changed = [not torch.equal(a, b) for a, b in zip(before, after, strict=True)]
        assert changed == [True, True, False, False]


def test_save_writes_the_weights_of_the_model(tmp_path: Path) -> None:
    with oc.prepare(make_job(), "mb8") as run:
        run.save(tmp_path / "weights.safetensors")
        weights = load_file(tmp_path / "weights.safetensors")
        state = run.model.state_dict()
        assert weights.keys() == state.keys()
        assert all(torch.equal(weights[name], tensor) for name, tensor in state.items())
