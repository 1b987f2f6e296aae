from dataclasses import replace

import pytest
import torch

from onecurve.data.loader import Reader
from onecurve.data.order import Order
from onecurve.data.training_data import TrainingData, open_dataset
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan


class Numbers:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(1), index


class WithoutLength:
    def __getitem__(self, index: int) -> int:
        return index


class WithoutItems:
    def __len__(self) -> int:
        return 10


def test_samples_are_read_in_the_order() -> None:
    order = Order([10], 0)
    data = TrainingData(Reader(Numbers(), 0), order, steps=3)
    expected = [sample.offset for sample in order.samples(0, 12)]
    assert data.micro(2, 5).target.tolist() == expected[2:5]
    batches = list(data.batches(Plan(micro_batch=2, rounds=2), 0, workers=0))
    read = [index for batch in batches for micro in batch.rounds for index in micro.target.tolist()]
    assert read == expected


def test_batches_have_those_of_the_steps_after_them() -> None:
    data = TrainingData(Reader(Numbers(), 0), Order([10], 0), steps=4)
    longer = replace(data, steps=6)
    plain = {batch.step: batch.rounds for batch in longer.batches(Plan(micro_batch=2, rounds=2), 0, workers=0)}
    for batch in data.batches(Plan(micro_batch=2, rounds=2), 0, workers=0, ahead=2):
        assert [*batch.upcoming] == [batch.step + 1, batch.step + 2]
        for step, rounds in {batch.step: batch.rounds, **batch.upcoming}.items():
            assert [micro.target.tolist() for micro in rounds] == [micro.target.tolist() for micro in plain[step]]


def test_a_map_style_dataset_is_returned_as_it_is() -> None:
    dataset = Numbers()
    assert open_dataset(lambda: dataset, "data", 0) is dataset


@pytest.mark.parametrize("kind", [WithoutLength, WithoutItems])
def test_a_dataset_needs_a_length_and_items(kind: type) -> None:
    with pytest.raises(OnecurveError, match=rf"evaluation\(\) .*{kind.__name__}"):
        open_dataset(kind, "evaluation", 0)


def test_an_error_in_the_function_of_the_user_is_explained() -> None:
    def broken() -> None:
        raise FileNotFoundError("no such folder")

    with pytest.raises(UserCodeError, match=r"data\(\) raised FileNotFoundError: no such folder"):
        open_dataset(broken, "data", 0)


def test_an_error_with_an_explanation_passes_through() -> None:
    def refused() -> None:
        raise OnecurveError("the data is not prepared")

    with pytest.raises(OnecurveError, match=r"^the data is not prepared$"):
        open_dataset(refused, "data", 0)


def test_a_data_loader_is_refused() -> None:
    """Its samples would be batches."""
    with pytest.raises(OnecurveError, match="returned a DataLoader; return its dataset"):
        open_dataset(lambda: torch.utils.data.DataLoader([1, 2, 3]), "data", 0)


def test_a_trial_reads_samples_several_times() -> None:
    order = Order([10], 0)
    data = TrainingData(Reader(Numbers(), 0), order, steps=3)
    expected = [sample.offset for sample in order.samples(2, 5)]
    assert data.trial_micro(2, 5).target.tolist() == expected
    assert data.trial_micro(2, 5, 2).target.tolist() == [*expected, *expected]
