"""Batches are the same whoever reads them, evaluation sees each sample once, and a raising dataset is explained."""

import multiprocessing
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onecurve.data.loader import EvaluationBatches, Reader, TrainingBatches
from onecurve.data.order import Order, Sample
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan


class Noisy:
    """Draws from all three generators."""

    def __init__(self, size: int, bad: int | None = None) -> None:
        self.size, self.bad = size, bad

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int):
        if index == self.bad:
            raise ValueError("broken picture")
        return torch.tensor([index, random.random(), np.random.rand(), torch.rand(()).item()]), index


def ids(batches) -> list[list[list[int]]]:
    return [[micro.target.tolist() for micro in batch.rounds] for batch in batches]


def test_worker_processes_change_nothing() -> None:
    reader, order, plan = Reader(Noisy(20), 5), Order([20], 5), Plan(Mesh(replicate=2), (3, 1), 2)
    alone, helped = (list(TrainingBatches(reader, order, plan, 0, 4, workers)) for workers in (0, 2))
    assert ids(alone) == ids(helped)
    for a, b in zip(alone, helped, strict=True):
        for one, other in zip(a.rounds, b.rounds, strict=True):
            assert torch.equal(one.inputs, other.inputs)


def test_a_sample_is_augmented_alike_on_every_rank_and_otherwise_in_the_next_epoch() -> None:
    reader = Reader(Noisy(20), 5)
    one = reader.batch([Sample(0, 0, 7)]).inputs
    assert torch.equal(one[0], reader.batch([Sample(0, 0, 3), Sample(0, 0, 7)]).inputs[1])
    assert not torch.equal(one, reader.batch([Sample(1, 0, 7)]).inputs)


def test_reading_in_the_rank_itself_leaves_its_generators_alone() -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    list(Reader(Noisy(9), 5).open([[Sample(0, 0, 1)]], workers=0))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_evaluation_sees_each_sample_once(size: int, replicate: int, shard: int, micro_batch: int) -> None:
    plan = Plan(Mesh(replicate=replicate, shard=shard), micro_batch)
    seen, counts = [], set()
    for rank in range(plan.mesh.data):
        micro_batches = list(EvaluationBatches(Reader(Noisy(size), 0), plan, rank, workers=0))
        counts.add(len(micro_batches))
        seen += [index for micro in micro_batches if micro.samples for index in micro.target.tolist()]
    assert sorted(seen) == list(range(size))
    assert len(counts) == 1  # so that collectives meet


@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluation_can_be_repeated_in_the_same_processes(workers: int) -> None:
    evaluation = EvaluationBatches(Reader(Noisy(20), 0), Plan(Mesh(replicate=2), (3, 1)), 0, workers)
    children = set(multiprocessing.active_children())
    seen = [[micro.target.tolist() for micro in evaluation] for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]
    assert sum(map(len, seen[0])) == 15
    assert set(multiprocessing.active_children()) == children


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dataset_that_raises_is_named(workers: int) -> None:
    batches = iter(Reader(Noisy(9, bad=4), 0).open([[Sample(0, 0, 3)], [Sample(0, 0, 4)]], workers))
    next(batches)
    with pytest.raises(UserCodeError, match=r"dataset\[4\] raised ValueError: broken picture"):
        next(batches)


def test_samples_of_unequal_sizes_say_the_mend() -> None:
    class Ragged(Noisy):
        def __getitem__(self, index: int):
            return torch.zeros(index), 0

    with pytest.raises(UserCodeError, match=r"Job\(collate=…\)"):
        Reader(Ragged(9), 0).batch([Sample(0, 0, 1), Sample(0, 0, 2)])


def test_a_batch_that_is_not_a_pair_says_the_mend() -> None:
    with pytest.raises(OnecurveError, match=r"pair \(input, target\)"):
        Reader(Noisy(9), 0, collate=lambda _: torch.zeros(3)).batch([Sample(0, 0, 1)])
