"""`onecurve.prepare` in this process: its arguments, and a training loop on one rank."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import onecurve as oc
from harness import SMALL
from onecurve.describe.generation import Generation, StoreAddress
from onecurve.describe.plan import Plan
from onecurve.device.world import World
from onecurve.job.script import load_job
from onecurve.runs.lock import RunLock
from onecurve.verbs import loop_worker
from onecurve.verbs.kept import Kept
from onecurve.verbs.loop_worker import LoopRank


def small(*arguments: str) -> oc.Job:
    return load_job(Path(SMALL), arguments)


def without_loss() -> oc.Job:
    data = small().data
    return oc.Job(model=lambda: nn.Linear(3, 1), data=data, optimizer=oc.SGD(lr=0.1), global_batch=8, steps=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"job": small}, r"got a function, but an onecurve\.Job is needed; call the function: job\(\)"),
        ({"backward": "yours"}, r"backward = 'yours' \(known: 'step', 'mine'\)"),
        ({"plan": "replicate2 mb4"}, "needs 2 ranks, but this world has 1"),
        ({"plan": "mb4"}, "global_batch"),
        ({"plan": "missing.toml"}, "missing.toml: no such file"),
        ({"plan": "mb8 fp16", "backward": "mine"}, "backward='mine' has no loss scaling; use bf16 or fp32"),
        ({"backward": "mine"}, "evaluate cannot be used with backward='mine'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(oc.OnecurveError, match=message):
        oc.prepare(**({"job": small()} | arguments))


def test_a_plan_of_the_script_and_one_of_the_command_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    generation = Generation(number=1, size=2, hosts=1, store=StoreAddress("", 0, ""), plan=Plan.parse("replicate2 mb4"))
    launcher: Any = SimpleNamespace(is_regroup_asked=False, hand_over=None)
    rank = LoopRank(World(rank=1, size=2), Kept(launcher, generation))
    monkeypatch.setattr(loop_worker, "_this_process", rank)
    with pytest.raises(oc.OnecurveError, match="asks for plan shard2 mb4 fp32, and onecurve run --plan gives one too"):
        oc.prepare(small(), plan="shard2 mb4")


def test_a_job_without_a_loss_needs_the_users_backward() -> None:
    with pytest.raises(oc.OnecurveError, match=r'it has no loss, .*onecurve\.prepare\(job, backward="mine"\)'):
        oc.prepare(without_loss())


def test_a_refused_job_leaves_the_folder_unlocked(tmp_path: Path) -> None:
    with pytest.raises(oc.OnecurveError, match="global_batch"):
        oc.prepare(small(), "mb4", out=tmp_path)
    RunLock(tmp_path).release()


def test_a_loop_trains_and_says_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    losses = []
    with oc.prepare(small("epochs=4"), "mb8", out=tmp_path) as run:
        assert str(run.plan) == "mb8 fp32"
        for batch in run:
            losses.append(run.step(batch).loss)
            run.checkpoint()
    assert len(losses) == run.steps == 32
    assert losses[-1] < losses[0]
    printed = capsys.readouterr()
    assert printed.out == ""
    assert [line.partition(":")[0] for line in printed.err.splitlines()] == ["onecurve"]
    assert "evaluation samples are in the training data too" in printed.err  # as they are in this job


def test_auto_replicates_the_model_on_every_rank() -> None:
    with oc.prepare(small()) as run:
        assert str(run.plan) == "mb8 fp32"


def test_a_manual_loop_is_told_what_cannot_be_proved(capsys: pytest.CaptureFixture[str]) -> None:
    with oc.prepare(without_loss(), "mb8", backward="mine"):
        pass
    assert capsys.readouterr().err.startswith("onecurve: mb8 fp32, backward='mine': ")


def test_a_constructor_that_cannot_be_recorded_gets_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    class Selects(nn.Linear):
        def __init__(self) -> None:
            super().__init__(3, 1)
            drawn = torch.randn(50)
            self.positive = nn.Parameter(drawn[drawn > 0])  # its shape depends on values

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) + self.positive.mean()

    job = small()
    job = oc.Job(
        model=Selects, loss=job.loss, data=job.data, optimizer=oc.SGD(lr=0.1), global_batch=8, steps=1, save=None
    )
    with oc.prepare(job, "mb8") as run:
        run.step(next(iter(run)))
    assert "could not be recorded" in capsys.readouterr().err
