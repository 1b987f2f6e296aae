"""Runs of one rank, in this process: struck, and gone on with."""

from contextlib import suppress
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc
from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore


class Points:
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((3,), index / 64) + torch.rand(3) / 10, torch.tensor([index / 64])


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 4), nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.tanh(self.first(x)))


def job(**changes: object) -> oc.Job:
    fields = {
        "model": Two,
        "loss": oc.loss.mse,
        "data": Points,
        "optimizer": oc.AdamW(lr=0.1),
        "schedule": oc.cosine(warmup=2),
        "global_batch": 8,
        "steps": 12,
        "save": oc.Save(every=3),
    }
    return oc.Job(**{**fields, **changes})


def train(made: oc.Job, out: Path, plan: str = "mb8") -> tuple[int, list[Tensor]]:
    """Where it began, and what it came to."""
    with oc.prepare(made, plan, out=out) as run:
        for batch in run:
            run.step(batch)
            if run.evaluation_due(batch.step):
                run.evaluate()
            run.checkpoint()
        return run.first_step, [parameter.detach().clone() for parameter in run.model.parameters()]


def strike(made: oc.Job, out: Path, step: int, plan: str = "mb8") -> None:
    """Train until an exception after so many steps."""
    with suppress(ZeroDivisionError), oc.prepare(made, plan, out=out) as run:
        for batch in run:
            run.step(batch)
            run.checkpoint()
            if batch.step == step:
                run._checkpoints.wait()
                raise ZeroDivisionError


def newest(out: Path) -> Checkpoint:
    store = LocalStore(out / "checkpoints")
    return Checkpoint(store, store.names()[-1])


def steps(out: Path) -> list[int]:
    store = LocalStore(out / "checkpoints")
    return [Checkpoint(store, name).root.point.step for name in store.names()]


def test_a_struck_run_ends_as_if_it_had_not_been(tmp_path) -> None:
    _, right = train(job(), tmp_path / "whole")
    strike(job(), tmp_path / "struck", 8)
    begun, found = train(job(), tmp_path / "struck")
    assert begun == 6
    assert all(torch.equal(a, b) for a, b in zip(right, found, strict=True))
    assert train(job(), tmp_path / "struck")[0] == 12  # it had ended


def test_in_rounds_and_in_fp16_too(tmp_path) -> None:
    plan = "mb2×4 fp16"
    _, right = train(job(), tmp_path / "whole", plan=plan)
    strike(job(), tmp_path / "struck", 7, plan)
    assert newest(tmp_path / "struck").root.point.train_state["good_steps"] > 0
    _, found = train(job(), tmp_path / "struck", plan=plan)
    assert all(torch.equal(a, b) for a, b in zip(right, found, strict=True))


def test_saves_by_the_clock(tmp_path) -> None:
    train(job(save=oc.Save(minutes=1e-9, last=100)), tmp_path)
    assert len(steps(tmp_path)) >= 6


def test_the_best_and_every_so_many_are_kept(tmp_path) -> None:
    evaluate = oc.Evaluate(Points, every=2)
    train(job(save=oc.Save(every=1, last=1, keep_every=4), evaluate=evaluate), tmp_path)
    kept = steps(tmp_path)
    assert {4, 8, 12} <= set(kept)
    assert len(kept) <= 4


def test_another_job_is_refused_and_what_is_there_stays(tmp_path) -> None:
    train(job(), tmp_path)
    with pytest.raises(oc.OnecurveError, match="differs in schedule, steps"):
        train(job(schedule=oc.linear(), steps=13), tmp_path)
    assert steps(tmp_path) == [9, 12]


def test_where_nothing_can_be_read_it_does_not_begin_anew(tmp_path) -> None:
    train(job(), tmp_path)
    for file in (tmp_path / "checkpoints").rglob("rank-0.json"):
        file.write_text("{}")
    with pytest.raises(oc.OnecurveError, match="none of its 2 checkpoints can be read"):
        train(job(), tmp_path)


def test_a_frozen_part_that_the_state_dict_leaves_out_is_saved(tmp_path) -> None:
    class Frozen(Two):
        def __init__(self) -> None:
            super().__init__()
            self.first.requires_grad_(False)

        def state_dict(self, *arguments: object, **named: object) -> dict[str, Tensor]:
            found = super().state_dict(*arguments, **named)
            return {name: tensor for name, tensor in found.items() if not name.startswith("first")}

    strike(job(model=Frozen), tmp_path, 8)
    assert "model/first.weight" in newest(tmp_path).tensors()


def test_who_keeps_the_backward_pass_resumes_as_well(tmp_path) -> None:
    optimizers = {"first": oc.AdamW(lr=0.1), "second": oc.SGD(lr=0.1, momentum=0.9)}

    def run(out: Path, stop: int) -> tuple[int, list[Tensor]]:
        with oc.prepare(job(optimizer=optimizers), "mb8", out=out, backward="mine") as run:
            for batch in run:
                for micro in batch.rounds:
                    error = (run.model(micro.inputs) - micro.target).square().sum()
                    run.backward(oc.Weighted(error, micro.samples))
                run.update("first")
                run.update("second")
                run.checkpoint()
                if batch.step == stop:
                    run._checkpoints.wait()
                    raise ZeroDivisionError
            return run.first_step, [parameter.detach().clone() for parameter in run.model.parameters()]

    _, right = run(tmp_path / "whole", 99)
    with suppress(ZeroDivisionError):
        run(tmp_path / "struck", 8)
    begun, found = run(tmp_path / "struck", 99)
    assert begun == 6
    assert all(torch.equal(a, b) for a, b in zip(right, found, strict=True))
