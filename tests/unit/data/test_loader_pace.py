"""The number of loader processes follows the waiting time, and samples that take long do not stall the training."""

import os
import time

import torch

from onecurve.data.loader import Reader, TrainingBatches
from onecurve.data.loader_pace import LoaderPace, Workers
from onecurve.data.order import Order
from onecurve.describe.plan import Plan


def after(pace: LoaderPace, steps: int, compute: float, reading: float) -> int:
    """Steps of a training that computes for so long, with processes that need so long for a batch."""
    for _ in range(steps):
        wait = max(0.0, reading / pace.processes - compute)
        pace.add(wait, compute + wait)
    return pace.processes


def test_processes_are_added_while_the_training_waits() -> None:
    assert after(LoaderPace(Workers(1, 8)), 200, compute=0.1, reading=0.05) == 1
    assert after(LoaderPace(Workers(1, 8)), 200, compute=0.1, reading=0.35) == 4
    assert after(LoaderPace(Workers(1, 3)), 200, compute=0.1, reading=2.0) == 3
    assert after(LoaderPace(Workers(2, 2)), 200, compute=0.1, reading=9.0) == 2


def test_processes_that_do_not_help_are_taken_back() -> None:
    pace = LoaderPace(Workers(1, 8))
    seen = set()
    for _ in range(400):  # the disk is the limit
        pace.add(0.2, 0.3)
        seen.add(pace.processes)
    assert seen == {1, 2}
    assert pace.processes == 1


class Uneven:
    """Every thirtieth sample takes long. Each is the process that has read it."""

    def __len__(self) -> int:
        return 10_000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        time.sleep(0.3 if index % 30 == 0 else 0.0)
        return torch.tensor([float(index)]), torch.tensor([os.getpid()])


def trained(workers: Workers, steps: int) -> tuple[float, int, int]:
    """The share of time that is waited, from the tenth step on, the processes that have read, and those at the end."""
    order = Order([10_000], seed=1)
    batches = TrainingBatches(Reader(Uneven(), 0), order, Plan.parse("mb2"), 0, steps, workers)
    waited, readers, begin = 0.0, set[int](), 0.0
    last = time.perf_counter()
    for number, batch in enumerate(batches):
        now = time.perf_counter()
        if number == 10:
            begin = last
        waited += now - last if number >= 10 else 0.0
        readers |= {int(pid) for micro in batch.rounds for pid in micro.target.flatten()}
        time.sleep(0.04)
        last = time.perf_counter()
    return waited / (time.perf_counter() - begin), len(readers), batches.processes


def test_samples_that_take_long_do_not_stall_the_training() -> None:
    # 20 ms of reading per step of 40 ms, but in pieces of 300 ms: it is 0.28 if two batches are read ahead. A busy
    # machine only adds to it.
    assert any(trained(Workers(1, 1), 100)[0] < 0.18 for _ in range(4))


def test_processes_that_are_not_needed_do_not_work() -> None:
    _, readers, processes = trained(Workers(1, 3), 12)
    assert (readers, processes) == (1, 1)


def test_processes_that_shorten_steps_just_enough_are_kept() -> None:
    pace = LoaderPace(Workers(1, 8))
    for seconds, waited in ((4.0, 1.0), (0.97 * 4.0, 0.0)):
        for step in range(16):
            pace.add(waited * 16 * (step == 0), seconds * 16 * (step == 0))  # the mean has no rounding
        assert pace.processes == 2
