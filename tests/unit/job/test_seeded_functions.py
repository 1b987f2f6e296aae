"""Every function of the user that builds something begins with the same random numbers, in each process."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, IterableDataset, random_split

import onecurve as oc
from onecurve.data.order import WHOLE, Sample
from onecurve.data.training_data import open_data
from onecurve.job.optimizer_factory import build_optimizer
from onecurve.job.script import load_job
from onecurve.runtime.loaders import open_evaluation

SCRIPT = """
import random, numpy, torch
import onecurve as oc

DRAWN = [random.random(), numpy.random.rand(), torch.rand(()).item()]

class Points:
    def __init__(self): self.drawn = [*DRAWN, *IN_JOB, random.random(), numpy.random.rand(), torch.rand(()).item()]
    def __len__(self): return 8
    def __getitem__(self, index): return torch.zeros(1), torch.zeros(1)

def job(seed: int = 0) -> oc.Job:
    global IN_JOB
    IN_JOB = [random.random(), numpy.random.rand(), torch.rand(()).item()]
    return oc.Job(model=lambda: torch.nn.Linear(1, 1), loss=oc.loss.mse, data=Points, optimizer=oc.SGD(lr=0.1),
                  global_batch=8, steps=2, seed=seed)
"""


def disturb(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def drawn_at(path: Path, seed: int, *arguments: str) -> list[float]:
    disturb(seed)
    job = load_job(path, arguments)
    disturb(seed + 1)
    return open_data(job).reader.dataset.drawn  # type: ignore[attr-defined, no-any-return]


def test_a_script_its_job_and_its_data_draw_the_same_at_every_start(tmp_path: Path) -> None:
    path = tmp_path / "drawing.py"
    path.write_text(SCRIPT)
    drawn = drawn_at(path, 1)
    assert len({*drawn}) == 9
    assert drawn == drawn_at(path, 2)
    other = drawn_at(path, 1, "seed=1")
    assert drawn[:6] == other[:6]
    assert not {*drawn[6:]} & {*other[6:]}  # the data follows the job's seed


def make_job(**changes: Any) -> oc.Job:
    settings: dict[str, Any] = {
        "model": lambda: nn.Linear(1, 1),
        "data": lambda: random_split(range(64), [48, 16])[0],  # type: ignore[arg-type]
        "loss": oc.loss.mse,
        "optimizer": oc.SGD(lr=0.1),
        "global_batch": 8,
        "steps": 2,
    }
    return oc.Job(**(settings | changes))


def test_two_splits_complement_each_other() -> None:
    evaluate = oc.Evaluate(lambda: random_split(range(64), [48, 16])[1], every=1)  # type: ignore[arg-type]
    job = make_job(evaluate=evaluate)
    training, evaluation = open_data(job).reader.dataset, open_evaluation(job)["data"].dataset
    assert sorted([*training, *evaluation]) == [*range(64)]  # type: ignore[misc]


def test_an_iterable_dataset_is_built_like_any_other() -> None:
    class Shuffled(IterableDataset[int]):
        def __init__(self) -> None:
            self.part: Dataset[int] = random_split(range(64), [48, 16])[0]  # type: ignore[arg-type]

        def __iter__(self) -> Any:
            return iter(self.part)  # type: ignore[call-overload]

    reader = open_data(make_job(data=Shuffled)).reader
    read = [reader.sample(Sample(0, WHOLE, index)) for index in range(48)]
    assert read == [*open_data(make_job()).reader.dataset]  # type: ignore[misc]


def test_an_optimizer_function_draws_the_same_and_the_callers_generators_stay() -> None:
    drawn = []

    def factory(named: Any) -> torch.optim.Optimizer:
        drawn.append((random.random(), torch.rand(()).item()))
        return torch.optim.SGD([parameter for _, parameter in named], lr=0.1)

    states = []
    for seed in (1, 2):
        disturb(seed)
        model = nn.Linear(1, 1)
        before = random.getstate(), torch.get_rng_state().tolist()
        build_optimizer(factory, model.named_parameters())
        states.append((random.getstate(), torch.get_rng_state().tolist()) == before)
    assert drawn[0] == drawn[1]
    assert states == [True, True]
