"""Batches do not depend on who reads them, an evaluation uses each sample once, and errors name the sample."""

import multiprocessing
import random
import signal

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from onecurve.data import loader
from onecurve.data.evaluation_batches import EvaluationBatches
from onecurve.data.loader import Reader, TrainingBatches
from onecurve.data.order import Order, Sample, Samples
from onecurve.data.training_data import TrainingData
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Plan


class Noisy:
    """A dataset whose samples draw from the generators of Python, NumPy and torch."""

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


def test_worker_processes_do_not_change_the_batches() -> None:
    reader, order, plan = Reader(Noisy(20), 5), Order([20], 5), Plan(Mesh(replicate=2), (3, 1), 2)
    without_workers, with_workers = (list(TrainingBatches(reader, order, plan, 0, 4, workers)) for workers in (0, 2))
    assert ids(without_workers) == ids(with_workers)
    for a, b in zip(without_workers, with_workers, strict=True):
        for one, other in zip(a.rounds, b.rounds, strict=True):
            assert torch.equal(one.inputs, other.inputs)


def test_augmentation_is_the_same_on_every_rank_and_differs_between_epochs() -> None:
    reader = Reader(Noisy(20), 5)
    one = reader.batch([Sample(0, 0, 7)]).inputs
    assert torch.equal(one[0], reader.batch([Sample(0, 0, 3), Sample(0, 0, 7)]).inputs[1])
    assert not torch.equal(one, reader.batch([Sample(1, 0, 7)]).inputs)


def test_reading_without_workers_preserves_the_generators() -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.get_rng_state(), random.getstate()
    list(Reader(Noisy(9), 5).open([[Sample(0, 0, 1)]], workers=0))
    assert torch.equal(before[0], torch.get_rng_state())
    assert before[1] == random.getstate()


@settings(max_examples=60)
@given(st.integers(1, 60), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_evaluation_uses_each_sample_once(size: int, replicate: int, shard: int, micro_batch: int) -> None:
    plan = Plan(Mesh(replicate=replicate, shard=shard), micro_batch)
    seen, counts = [], set()
    for rank in range(plan.mesh.data):
        micro_batches = list(EvaluationBatches(Reader(Noisy(size), 0), plan, rank, workers=0))
        counts.add(len(micro_batches))
        seen += [index for micro in micro_batches if micro.samples for index in micro.target.tolist()]
    assert sorted(seen) == list(range(size))
    assert len(counts) == 1  # otherwise collectives would not match between ranks


@pytest.mark.parametrize("workers", [0, 2])
def test_an_evaluation_can_be_repeated_with_the_same_worker_processes(workers: int) -> None:
    evaluation = EvaluationBatches(Reader(Noisy(20), 0), Plan(Mesh(replicate=2), (3, 1)), 0, workers)
    children = set(multiprocessing.active_children())
    seen = [[micro.target.tolist() for micro in evaluation] for _ in range(3)]
    assert seen[0] == seen[1] == seen[2]
    assert sum(map(len, seen[0])) == 15
    assert set(multiprocessing.active_children()) <= children  # those of other tests may end meanwhile


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_in_the_dataset_names_the_sample(workers: int) -> None:
    batches = iter(Reader(Noisy(9, bad=4), 0).open([[Sample(0, 0, 3)], [Sample(0, 0, 4)]], workers))
    next(batches)
    with pytest.raises(UserCodeError, match=r"dataset\[4\] raised ValueError: broken picture"):
        next(batches)


def test_samples_of_different_sizes_suggest_a_collate_function() -> None:
    class Ragged(Noisy):
        def __getitem__(self, index: int):
            return torch.zeros(index), 0

    with pytest.raises(UserCodeError, match=r"Job\(collate=…\)"):
        Reader(Ragged(9), 0).batch([Sample(0, 0, 1), Sample(0, 0, 2)])


def test_a_batch_that_is_not_a_pair_is_refused() -> None:
    with pytest.raises(OnecurveError, match=r"pair \(input, target\)"):
        Reader(Noisy(9), 0, collate=lambda _: torch.zeros(3)).batch([Sample(0, 0, 1)])


def positions(order: Order, begin: int, end: int) -> list[int]:
    return [sample.offset for sample in order.samples(begin, end)]


@pytest.mark.parametrize("workers", [0, 1])
def test_batches_continue_at_any_step_and_position(workers: int) -> None:
    order, plan = Order([50], 3), Plan(Mesh(replicate=2), (3, 1), 2)
    batches = TrainingBatches(Reader(Noisy(50), 3), order, plan, 1, 4, workers)
    assert [batch.step for batch in batches] == [1, 2, 3, 4]
    batches.start(2, 21, 4)
    # Rank 1 has the last sample of each round of four.
    assert ids(batches) == [
        [positions(order, 24, 25), positions(order, 28, 29)],
        [positions(order, 32, 33), positions(order, 36, 37)],
    ]
    batches.start(3, 40, 6)
    assert [batch.step for batch in batches] == [4, 5, 6]


def test_a_rank_without_samples_gets_a_filler_batch_that_does_not_count() -> None:
    plan = Plan(Mesh(replicate=2), (3, 1))
    first, last = (list(EvaluationBatches(Reader(Noisy(6), 0), plan, rank, workers=0)) for rank in (0, 1))
    assert [micro.target.tolist() for micro in first] == [[0, 1, 2], [4]]
    assert [micro.target.tolist() for micro in last] == [[3], [5]]
    first, last = (list(EvaluationBatches(Reader(Noisy(5), 0), plan, rank, workers=0)) for rank in (0, 1))
    assert [(micro.samples, micro.target.tolist()) for micro in first] == [(3, [0, 1, 2]), (0, [0])]
    assert [(micro.samples, micro.target.tolist()) for micro in last] == [(1, [3]), (1, [4])]


def test_a_collate_function_of_the_user_is_not_blamed_for_sizes() -> None:
    def broken(_: list) -> None:
        raise KeyError("image")

    with pytest.raises(UserCodeError, match="collating 2 samples raised KeyError") as refused:
        Reader(Noisy(9), 0, broken).batch([Sample(0, 0, 1), Sample(0, 0, 2)])
    assert "Job(collate" not in str(refused.value)


def test_workers_ignore_ctrl_c_and_have_one_thread() -> None:
    class Worker(Noisy):
        def __getitem__(self, index: int):
            ignored = signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            return torch.zeros(1), int(ignored and torch.get_num_threads() == 1)

    assert next(iter(Reader(Worker(9), 0).open([[Sample(0, 0, 3)]], workers=1))).target.tolist() == [1]


@pytest.mark.parametrize("kind", [loader.Batch, loader.LoadFailure, Reader, Samples, TrainingData])
def test_what_is_passed_between_processes_cannot_be_changed(kind: type) -> None:
    assert kind.__dataclass_params__.frozen
