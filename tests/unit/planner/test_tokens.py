import torch

from onecurve.job.batch import MicroBatch
from onecurve.planner.tokens import tokens_of

IDS, FLOATS = torch.zeros(2, 64, dtype=torch.int64), torch.zeros(2, 64)
CLASSES = torch.zeros(2, dtype=torch.int64)


def test_input_ids_are_tokens_whatever_the_target_is() -> None:
    tokens = tokens_of(MicroBatch({"input_ids": IDS, "labels": IDS}, CLASSES, 2))
    assert tokens is not None
    assert (tokens.per_sample, tokens.counted_in) == (64, "the length of input_ids")


def test_integers_with_a_target_of_the_same_shape_are_tokens() -> None:
    for inputs in (IDS, (FLOATS, IDS)):
        tokens = tokens_of(MicroBatch(inputs, IDS, 2))
        assert tokens is not None
        assert tokens.per_sample == 64


def test_other_inputs_are_not_counted_as_tokens() -> None:
    for inputs, target in (
        (IDS, CLASSES),  # categories, for example, of a click
        (IDS, IDS[:, :32]),
        (IDS, FLOATS),
        (FLOATS, FLOATS),
        (torch.zeros(2, 3, 8, 8), CLASSES),
        ({"input_ids": CLASSES}, CLASSES),
    ):
        assert tokens_of(MicroBatch(inputs, target, 2)) is None
