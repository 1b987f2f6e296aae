"""Evaluations and checkpoints once per epoch, and a warmup in epochs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import onecurve as oc


class Points:
    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((3,), float(index)), torch.zeros(1)


def make_job(**changes: Any) -> oc.Job:
    settings: dict[str, Any] = {"optimizer": oc.SGD(lr=1e-4), "global_batch": 4, "epochs": 3, "workers": 0}
    return oc.Job(**{"model": lambda: nn.Linear(3, 1), "loss": oc.loss.mse, "data": Points} | settings | changes)


def test_an_epoch_ends_with_the_step_that_completes_it(tmp_path: Path) -> None:
    job = make_job(evaluate=oc.Evaluate(Points, every="epoch"), save=oc.Save(every="epoch", last=9, best=False))
    evaluated = []
    with oc.prepare(job, out=tmp_path) as run:
        for batch in run:
            run.step(batch)
            if run.evaluation_due(batch.step):
                run.evaluate()
                evaluated.append(batch.step)
            run.checkpoint()
    assert evaluated == [6, 11, 17]  # 24, 44 and 68 samples: the first steps with at least 22, 44 and 66
    saved = sorted(int(path.name.split("-")[1]) for path in (tmp_path / "checkpoints").glob("step-*"))
    assert saved == [6, 11, 17]


def test_epochs_are_refused_where_there_are_none() -> None:
    endless = oc.data.stream(lambda _: iter(lambda: (torch.zeros(3), torch.zeros(1)), None), lanes=1)
    for changes in ({"evaluate": oc.Evaluate(Points, every="epoch")}, {"save": oc.Save(every="epoch")}):
        job = make_job(data=lambda: endless, epochs=None, steps=4, **changes)
        with pytest.raises(oc.OnecurveError, match="every='epoch', but the data is a stream"), oc.prepare(job):
            pass
    with pytest.raises(oc.OnecurveError, match="a warmup in epochs needs epochs=… in the job"):
        make_job(epochs=None, steps=4, schedule=oc.cosine(warmup="1 epoch"))
    with oc.prepare(make_job(schedule=oc.constant(warmup="1 epoch"))) as run:
        rates = [run.step(batch).lr for batch in run]
    assert rates[0] == pytest.approx(1e-4 / 6)
    assert rates[5:] == pytest.approx([1e-4] * (len(rates) - 5))
