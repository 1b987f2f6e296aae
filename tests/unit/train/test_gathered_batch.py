"""Values of the parts of a batch are put together."""

import pytest
import torch

from onecurve.describe.errors import OnecurveError
from onecurve.train.gathered_batch import gather_batch


def test_rounds_are_put_together_in_order() -> None:
    scale = torch.tensor(2.0)
    parts = [(({"a": torch.full((n, 3), float(n))}, scale), n) for n in (2, 1, 3)]
    batch = gather_batch(None, parts)
    values, joined_scale = batch.values
    assert values["a"][:, 0].tolist() == [2, 2, 1, 3, 3, 3]
    assert joined_scale is scale
    assert (batch.samples, batch.own) == (6, ((0, 2), (2, 3), (3, 6)))


def test_a_filler_has_values_but_no_samples() -> None:
    batch = gather_batch(None, [(torch.ones(2, 1), 2), (torch.zeros(1, 1), 0)])
    assert batch.values.tolist() == [[1], [1]]
    assert batch.own == ((0, 2), (2, 2))


@pytest.mark.parametrize("other", [torch.ones(2, 4), "text"])
def test_what_cannot_be_put_together_is_refused(other: object) -> None:
    with pytest.raises(OnecurveError, match="must be tensors of the same shape"):
        gather_batch(None, [(torch.ones(2, 3), 2), (other, 2)])
