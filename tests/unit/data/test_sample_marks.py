"""A few samples stand for a dataset: what they are is marked the same way in every process."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import onecurve as oc
from onecurve.data.loader import Reader
from onecurve.data.sample_marks import positions, read_marks, unstable_text
from onecurve.data.training_data import open_data
from onecurve.data.value_mark import mark_value, short_text
from onecurve.describe.data_marks import DataMarks, difference

SIDES = "there", "here"


class Data:
    def __init__(self, read: Callable[[int], Any], length: int = 20) -> None:
        self.read, self.length = read, length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.read(index)


def marks_of(read: Callable[[int], Any], length: int = 20, twice: bool = True) -> DataMarks:
    marks = read_marks(Reader(Data(read, length), seed=0), twice)
    assert marks is not None
    return marks


def differ(one: Callable[[int], Any], other: Callable[[int], Any]) -> str:
    return difference("data", marks_of(one), marks_of(other), SIDES)


def tensor(index: int) -> torch.Tensor:
    return torch.arange(4.0) + index


@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 48, 1000, 10**12])
def test_positions_are_spread_over_the_data_with_its_ends(length: int) -> None:
    chosen = positions(length)
    assert len(chosen) == len(set(chosen)) == min(16, length)
    assert {0, length - 1} <= set(chosen)
    assert all(0 <= index < length for index in chosen)
    if length > 100:
        gaps = np.diff(sorted(chosen)) / length
        assert gaps.max() < 0.2


@pytest.mark.parametrize(
    "change",
    [
        lambda sample: (sample[0], 1 - sample[1]),
        lambda sample: (sample[0].flip(0), sample[1]),
        lambda sample: (sample[0].double(), sample[1]),
        lambda sample: (sample[0].reshape(2, 2), sample[1]),
        lambda sample: (sample[0], str(sample[1])),
        lambda sample: {"input_ids": sample[0], "labels": sample[1]},
        lambda sample: (sample[0] * 1.01, sample[1]),
    ],
)
def test_another_sample_is_seen(change: Callable[[Any], Any]) -> None:
    assert differ(lambda index: (tensor(index), index % 2), lambda index: change((tensor(index), index % 2)))


@pytest.mark.parametrize(
    "sample",
    [
        lambda index: {"b": [index, "text"], "a": np.float32(index), "set": {"x", "y", str(index)}, "labels": None},
        lambda index: (torch.tensor(index).bfloat16(), torch.tensor([index]).to(torch.float8_e4m3fn)),
        lambda _: (torch.eye(3).to_sparse(), object()),
        lambda index: (np.array([index, "x"], dtype=object), 1 + 2j),
        lambda index: (torch.full((2,), float("nan")), index),
    ],
)
def test_samples_of_any_kind_are_equal_to_themselves(sample: Callable[[int], Any]) -> None:
    assert differ(sample, sample) == ""
    assert unstable_text("data", marks_of(sample)) == ""


def test_a_dict_is_compared_in_the_order_of_its_keys() -> None:
    assert differ(lambda index: {"a": index, "b": 2}, lambda index: {"b": 2, "a": index}) == ""
    assert "target 0 there, 3 here" in differ(lambda _: {"x": 1, "label": 0}, lambda _: {"x": 1, "label": 3})


def test_the_last_digits_of_computed_inputs_may_differ() -> None:
    """Processors compute with other instructions."""

    def off_by_little(index: int) -> Any:
        return torch.sin(tensor(index)) * (1 + 1e-6), index

    assert differ(lambda index: (torch.sin(tensor(index)), index), off_by_little) == ""


def test_random_augmentation_is_the_same_each_time_and_leaves_the_callers_generators() -> None:
    def augmented(index: int) -> Any:
        return tensor(index) + torch.rand(4) + random.random() + np.random.rand(), index

    random.seed(1)
    before = random.getstate()
    assert differ(augmented, augmented) == ""
    assert random.getstate() == before
    assert unstable_text("data", marks_of(augmented)) == ""


def test_an_input_that_is_another_one_each_time_is_not_compared_but_its_target_is() -> None:
    draws = np.random.default_rng()

    def noisy(index: int) -> Any:
        return tensor(index) + draws.random(), index

    marks = marks_of(noisy)
    assert "data: the input of dataset[0] is another one each time it is read" in unstable_text("data", marks)
    assert difference("data", marks, marks_of(noisy, twice=False), SIDES) == ""
    other = marks_of(lambda index: (tensor(index), index + 1), twice=False)
    assert "target 0 there, 1 here" in difference("data", marks, other, SIDES)


def test_a_sample_that_cannot_be_read_is_left_out() -> None:
    def broken(index: int) -> Any:
        if index == 0:
            raise ValueError("damaged")
        return tensor(index), index

    assert 0 not in [mark.index for mark in marks_of(broken).samples]
    assert differ(broken, lambda index: (tensor(index), index)) == ""


def test_a_stream_is_not_read() -> None:
    def open_lane(_: int) -> Any:
        raise AssertionError("opened")

    job = oc.Job(
        model=lambda: torch.nn.Linear(1, 1),
        data=lambda: oc.data.stream(open_lane, lanes=4),
        loss=oc.loss.mse,
        optimizer=oc.SGD(lr=0.1),
        global_batch=4,
        steps=2,
    )
    assert read_marks(open_data(job).reader, twice=True) is None


def test_values_are_shown_in_few_words() -> None:
    assert short_text(torch.tensor([1, 2])) == "[1, 2]"
    assert short_text(torch.zeros(3, 224, 224)) == "[0, 0, 0, 0, …] (float32 [3, 224, 224])"
    assert len(short_text("x" * 1000)) <= 60


def test_one_hot_inputs_differ_wherever_the_one_is() -> None:
    """Their norms and plain sums are equal."""
    sums = {tuple(round(each, 3) for each in mark_value(row).sums) for row in np.eye(1000, dtype=np.float32)}
    assert len(sums) == 1000


def test_positions_divide_the_data_coarsely_first() -> None:
    assert positions(1001, 9) == [0, 1000, 500, 250, 750, 125, 375, 625, 875]
