"""Runs of one rank, in this process, that continue with a changed job, compared with a loop written by hand."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.checkpoint.hashed_json import dump_hashed, load_hashed
from onecurve.data.order import Order
from onecurve.runs.lock import RunLock

SAMPLES = 61
STOP = 4
"""Steps before the change."""


class Points:
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.tensor([index, index * index % 7, 1.0]) / 16, torch.tensor([index / SAMPLES])


def make_job(**changes: Any) -> oc.Job:
    settings = {
        "model": lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)),
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.05, groups={"*bias": {"weight_decay": 0.0}}),
        "schedule": oc.cosine(warmup=2),
        "global_batch": 6,
        "steps": 10,
        "save": oc.Save(every=1),
    }
    return oc.Job(**(settings | changes))


def train(
    job: oc.Job, out: Path, change: str | Sequence[str] = (), stop: int | None = None
) -> tuple[list[Any], dict[str, Tensor]]:
    """Train to the end, or to step `stop`; return the records of the steps and the weights."""
    records = []
    with oc.prepare(job, f"mb{job.global_batch} fp64", out=out, change=change) as run:
        for batch in run:
            records.append(run.step(batch).record())
            run.checkpoint()
            if batch.step == stop:
                break
        return records, {name: tensor.detach().clone() for name, tensor in run.model.state_dict().items()}


def by_hand(first: oc.Job, second: oc.Job, steps: int) -> tuple[list[float], dict[str, Tensor]]:
    """Train in a plain loop: `STOP` steps of the first job, then the second up to step `steps`; one device, float64."""
    with oc.prepare(first, f"mb{first.global_batch} fp64") as run:
        model = run.model
    optimizer = first.optimizer(list(model.named_parameters()))
    order, position, losses = Order([SAMPLES], seed=0), 0, []
    for step in range(steps):
        job, total = (first, 10) if step < STOP else (second, steps)
        samples = [Points()[sample.offset] for sample in order.samples(position, position + job.global_batch)]
        position += job.global_batch
        x, y = (torch.stack(column).double() for column in zip(*samples, strict=True))
        for group in optimizer.param_groups:
            group["lr"] = job.optimizer.settings["lr"] * job.lr_factor(step, total)
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses, model.state_dict()


CHANGES: list[tuple[str, dict[str, Any], int]] = [
    ("lr", {"optimizer": oc.AdamW(lr=0.01, groups={"*bias": {"weight_decay": 0.0}})}, 10),
    ("schedule", {"schedule": oc.linear(final=0.5)}, 10),
    ("steps", {"steps": 7}, 7),
    ("steps", {"steps": 13}, 13),
    ("global_batch", {"global_batch": 16}, 10),
    ("global_batch,steps", {"global_batch": 16, "steps": None, "epochs": 2}, 11),  # 24 + 7 × 16 ≥ 122 samples
]


@pytest.mark.parametrize(
    ("change", "settings", "steps"), CHANGES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_a_changed_run_equals_a_loop_by_hand(
    change: str, settings: dict[str, Any], steps: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = make_job(), make_job(**settings)
    before, _ = train(first, tmp_path, stop=STOP)
    after, weights = train(second, tmp_path, change)
    losses, expected = by_hand(first, second, steps)
    assert [record.step for record in after] == list(range(STOP + 1, steps + 1))
    assert [record.loss for record in before + after] == pytest.approx(losses, rel=1e-13)
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-12, atol=1e-14)
    said = capsys.readouterr().err
    assert said.startswith(f"onecurve: changed after step {STOP}: {change.split(',')[0]} ")
    assert said.count("\n") == 1


def ids(job: oc.Job, out: Path, change: str = "", stop: int | None = None) -> list[list[int]]:
    """Train; return the sample indices of each step."""
    seen = []
    with oc.prepare(job, f"mb{job.global_batch}", out=out, change=change or ()) as run:
        for batch in run:
            seen.append([round(value * 16) for micro in batch.rounds for value in micro.inputs[:, 0].tolist()])
            run.step(batch)
            run.checkpoint()
            if batch.step == stop:
                break
    return seen


def test_over_three_batch_sizes_every_sample_of_an_epoch_is_used_once(tmp_path: Path) -> None:
    epochs = {"steps": None, "epochs": 2}
    steps = ids(make_job(**epochs), tmp_path, stop=3)
    steps += ids(make_job(**epochs, global_batch=10), tmp_path, "global_batch", stop=6)
    steps += ids(make_job(**epochs, global_batch=10), tmp_path, stop=8)  # no change, no flag
    steps += ids(make_job(**epochs, global_batch=3), tmp_path, "global_batch")
    assert list(map(len, steps)) == [6] * 3 + [10] * 5 + [3] * 18
    seen = [index for step in steps for index in step]
    assert len(seen) == 2 * SAMPLES  # 18 + 50 + 54
    assert sorted(seen[:SAMPLES]) == list(range(SAMPLES))
    assert set(Counter(seen).values()) == {2}


def test_the_records_count_the_samples_of_both_batch_sizes(tmp_path: Path) -> None:
    before, _ = train(make_job(), tmp_path, stop=STOP)
    after, _ = train(make_job(global_batch=16, steps=6), tmp_path, "global_batch,steps")
    assert [record.samples for record in before + after] == [6, 12, 18, 24, 40, 56]


def test_the_same_command_continues_after_a_crash_and_the_change_is_made_once(tmp_path: Path) -> None:
    changed = make_job(steps=8)
    train(make_job(), tmp_path / "a", stop=STOP)
    train(changed, tmp_path / "a", "steps", stop=6)
    with oc.prepare(changed, "mb6 fp64", out=tmp_path / "a", change="steps") as run:
        assert run.first_step == 6
        assert [(change.field, change.old, change.new, change.step) for change in run.changes] == [
            ("steps", "10", "8", STOP)
        ]
        assert run.changed == ""
    train(make_job(), tmp_path / "b", stop=STOP)
    _, uninterrupted = train(changed, tmp_path / "b", "steps")
    _, resumed = train(changed, tmp_path / "a")
    assert all(torch.equal(uninterrupted[name], resumed[name]) for name in resumed)


def test_the_best_evaluation_stays(tmp_path: Path) -> None:
    evaluate = oc.Evaluate(Points, every=2)
    with oc.prepare(make_job(evaluate=evaluate), "mb6", out=tmp_path) as run:
        for batch in run:
            run.step(batch)
            if batch.step == 2:
                value = run.evaluate().loss
            run.checkpoint()
            if batch.step == STOP:
                break
    with oc.prepare(make_job(evaluate=evaluate, steps=12), "mb6", out=tmp_path, change="steps") as run:
        assert run.best is not None
        assert run.best.best is not None
        assert (run.best.best.value, run.best.best.step) == (value, 2)


def test_an_older_checkpoint_counted_the_best_step_from_0_and_changes_as_now(tmp_path: Path) -> None:
    evaluate = oc.Evaluate(Points, every=2)
    train(make_job(evaluate=evaluate), tmp_path, stop=2)
    with oc.prepare(make_job(evaluate=evaluate, steps=12), "mb6 fp64", out=tmp_path, change="steps") as run:
        run.step(next(iter(run)))
        run.evaluate()
    for path in tmp_path.glob("checkpoints/*/root.json"):
        root = load_hashed(dict[str, Any], path.read_bytes(), "root")
        path.write_bytes(dump_hashed({**root, "version": 2}))
    with oc.prepare(make_job(evaluate=evaluate, steps=14), "mb6 fp64", out=tmp_path, change="steps") as run:
        assert [change.step for change in run.changes] == [2, 3]
        assert run.best is not None
        assert run.best.best is not None
        assert run.best.best.step == 4  # the file has 3


def test_a_loop_with_its_own_backward_continues_with_the_new_rate_and_batch(tmp_path: Path) -> None:
    def run(job: oc.Job, change: str, stop: int) -> list[tuple[float, int]]:
        seen = []
        with oc.prepare(job, f"mb{job.global_batch}", out=tmp_path, backward="mine", change=change or ()) as run:
            for batch in run:
                for micro in batch.rounds:
                    run.backward((run.model(micro.inputs) - micro.target).square().mean(1))
                report = run.update()
                seen.append((report.lr, report.samples))
                run.checkpoint()
                if batch.step == stop:
                    break
        return seen

    constant = {"schedule": oc.constant()}
    assert run(make_job(**constant), "", 2) == [(0.05, 6), (0.05, 12)]
    new = make_job(**constant, optimizer=oc.AdamW(lr=0.01, groups={"*bias": {"weight_decay": 0.0}}), global_batch=8)
    assert run(new, "lr,global_batch", 4) == [(0.01, 20), (0.01, 28)]


REFUSALS: list[tuple[dict[str, Any], str, str]] = [
    ({"steps": 12}, "", r"differs in steps \(steps was 10, is 12\); add --change steps to continue"),
    ({"steps": 12, "seed": 1}, "steps", "restore the old seed, which cannot be changed, and add --change steps"),
    ({}, "lr", r"--change lr, but lr did not change: it is 0\.05"),
    ({"steps": STOP}, "steps", r"has done 4 steps, and the job now has 4; increase steps"),
    ({"steps": None, "epochs": 0.1}, "steps", r"has done 4 steps, and the job now has 4; increase steps or epochs"),
    ({"save": None}, "lr", r"a run without Job\(save=…\) has no checkpoint"),
    ({"clip": 1.0}, "clip", "--change clip: not a field that may change while a run continues"),
]


@pytest.mark.parametrize(("settings", "change", "message"), REFUSALS)
def test_what_cannot_be_continued_is_refused_and_nothing_is_lost(
    settings: dict[str, Any], change: str, message: str, tmp_path: Path
) -> None:
    train(make_job(), tmp_path, stop=STOP)
    with pytest.raises(oc.OnecurveError, match=message):
        train(make_job(**settings), tmp_path, change or ())
    RunLock(tmp_path).release()
    with oc.prepare(make_job(), "mb6 fp64", out=tmp_path) as run:
        assert run.first_step == STOP


def test_a_change_needs_a_checkpoint_to_continue_from(tmp_path: Path) -> None:
    with pytest.raises(oc.OnecurveError, match="--change lr, but there is no checkpoint to continue from; leave"):
        train(make_job(), tmp_path, "lr")


def test_an_old_plan_that_does_not_fit_the_new_batch_is_explained_by_the_change(tmp_path: Path) -> None:
    train(make_job(), tmp_path, stop=STOP)
    with pytest.raises(oc.OnecurveError, match=r"differs in global_batch, steps .*add --change global_batch,steps"):
        oc.prepare(make_job(global_batch=8, steps=12), "mb6 fp64", out=tmp_path)
    with pytest.raises(oc.OnecurveError, match=r"plan mb6 fp64: .*but the job's global_batch is 8 \(try mb8 fp64\)"):
        oc.prepare(make_job(global_batch=8), "mb6 fp64", out=tmp_path, change="global_batch")
