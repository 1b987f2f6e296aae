import pytest
import torch

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.batch import MicroBatch
from onecurve.job.objective import objective_of, weigh
from onecurve.job.weighted import Weighted


def test_the_three_forms_of_a_loss_agree() -> None:
    values = torch.tensor([1.0, 2.0, 6.0])
    for form in (values, Weighted(values.sum(), 3), values.mean()):
        weighted = weigh(form, 3)
        assert (weighted.sum.item(), weighted.count) == (9.0, 3)


@pytest.mark.parametrize("value", [torch.zeros(2, 3), torch.zeros(4), 1.0, None, Weighted(torch.zeros(3), 3)])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(OnecurveError, match="loss: "):
        weigh(value, 3)


def test_an_error_in_the_loss_is_a_user_code_error_that_describes_the_output() -> None:
    micro = MicroBatch(torch.zeros(2), torch.zeros(2), 2)
    output = [{"boxes": torch.zeros(1, 4), "labels": torch.zeros(1)}] * 2
    with pytest.raises(UserCodeError, match=r"AttributeError.*list of 2, the first is dict with boxes, labels"):
        objective_of(lambda out, _: sum(out.values()))(output, micro)


def test_a_loss_that_loses_its_gradient_is_refused() -> None:
    micro, output = MicroBatch(torch.zeros(2), torch.zeros(2), 2), torch.ones(2, requires_grad=True)
    objective = objective_of(lambda out, _: torch.tensor([value.item() for value in out["logits"]]))
    with pytest.raises(OnecurveError, match="has no gradient"):
        objective({"logits": output}, micro)
    assert objective({"logits": output.detach()}, micro).sum == 2  # an evaluation
