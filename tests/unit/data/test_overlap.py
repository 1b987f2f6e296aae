"""A run warns if samples of its evaluation are in the training data, and only then."""

import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset, random_split

from onecurve.data import overlap
from onecurve.data.loader import Reader
from onecurve.data.overlap import overlap_text


class Numbered:
    """Samples that follow from their numbers."""

    def __init__(self, numbers: Sequence[int]) -> None:
        self.numbers = numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.tensor([float(self.numbers[index]), 1.0]), self.numbers[index] % 3


@pytest.fixture(autouse=True)
def enough_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_SECONDS", 60.0)


def text_of(training: object, evaluation: object) -> str:
    return overlap_text("evaluate.data", Reader(training, 0), Reader(evaluation, 0))  # type: ignore[arg-type]


def test_small_data_is_compared_in_full() -> None:
    text = text_of(Numbered(range(40)), Numbered([*range(34, 40), *range(100, 104)]))
    assert text.startswith("evaluate.data: 6 of the 10 evaluation samples are in the training data too")


def test_parts_of_one_split_have_nothing_in_common() -> None:
    first, second = random_split(Numbered(range(1000)), [800, 200])  # type: ignore[var-annotated, arg-type]
    assert text_of(first, second) == ""


def test_two_splits_of_large_data_are_compared_by_their_indices() -> None:
    training = Subset(Numbered(range(50_000)), range(40_000))  # type: ignore[var-annotated, arg-type]
    evaluation = Subset(Numbered(range(50_000)), range(39_000, 41_000))  # type: ignore[var-annotated, arg-type]
    assert "1,000 of the 2,000 evaluation samples" in text_of(training, evaluation)


def test_subsets_of_other_data_of_the_same_kind_have_nothing_in_common() -> None:
    training = Subset(Numbered(range(1000)), range(800))  # type: ignore[var-annotated, arg-type]
    evaluation = Subset(Numbered(range(5000, 6000)), range(800))  # type: ignore[var-annotated, arg-type]
    assert text_of(training, evaluation) == ""


def test_the_same_data_under_the_same_numbers_is_found_however_large_it_is() -> None:
    assert "about 100 %" in text_of(Numbered(range(10**7)), Numbered(range(10_000)))


@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_the_share_is_estimated_from_some_samples(share: float) -> None:
    order = np.random.default_rng(1).permutation(1500).tolist()
    evaluation = [*order[: int(1000 * share)], *range(9000, 10_000 - int(1000 * share))]
    text = text_of(Numbered(range(1500)), Numbered(evaluation))
    estimated = re.search(r"about (\d+) % of the evaluation samples .*estimated from 256", text)
    assert estimated is not None, text
    assert abs(int(estimated[1]) / 100 - share) < 0.35


@pytest.mark.parametrize("values", [2, 50, 1000])
def test_samples_that_are_equal_by_chance_are_no_alarm(values: int) -> None:
    """Data of few distinct values, drawn independently."""
    draws = np.random.default_rng(2)
    for size in (300, 4000):
        training, evaluation = draws.integers(0, values, size).tolist(), draws.integers(0, values, size // 4).tolist()
        assert text_of(Numbered(training), Numbered(evaluation)) == ""


def test_samples_that_are_augmented_in_both_are_compared() -> None:
    class Augmented(Numbered):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            value, target = super().__getitem__(index)
            return value + torch.rand(2), target

    assert "10 of the 20 evaluation samples" in text_of(Augmented(range(40)), Augmented(range(30, 50)))


def test_samples_of_pure_noise_are_no_alarm() -> None:
    class Noise(Numbered):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return torch.randn(3), 0

    assert text_of(Noise(range(100)), Noise(range(50))) == ""


def test_reading_ends_after_some_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overlap, "_SECONDS", 0.0)
    reads = []

    class Slow(Numbered):
        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            reads.append(index)
            return super().__getitem__(index)

    assert text_of(Slow(range(400)), Slow(range(400))) == ""
    assert len(reads) == 1
    assert text_of(TensorDataset(torch.zeros(0, 2)), Slow(range(4))) == ""


def test_a_few_equal_samples_of_many_are_no_alarm() -> None:
    assert text_of(Numbered(range(100)), Numbered([*range(97, 100), *range(500, 597)])) == ""
    assert "6 of the 100" in text_of(Numbered(range(100)), Numbered([*range(94, 100), *range(500, 594)]))
