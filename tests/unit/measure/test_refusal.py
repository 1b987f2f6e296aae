"""A failed trace is explained by operation and module; a defect in onecurve itself is not blamed on the model."""

import logging

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.measure.refusal import explain_trace_failure, refusal_of


class Reads(nn.Module):
    """Its forward reads a value, which a fake tensor does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x) * x.sum().item()


class Raises(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, _: Tensor) -> Tensor:
        raise self.error


def nested(inner: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.GELU(), inner))


def failure(model: nn.Module) -> Exception:
    """The exception of a forward on fake tensors."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    with mode, pytest.raises(Exception) as caught:  # noqa: PT011
        model(torch.zeros(2, 4))
    return caught.value


def failure_in_own_code() -> Exception:
    """An AttributeError that onecurve's own code raises."""
    with pytest.raises(AttributeError) as caught:
        Plan.share(object(), 0)
    return caught.value


def test_the_operation_and_the_innermost_module_are_named() -> None:
    model = nested(Reads())
    reason = refusal_of(failure(model), model)
    assert reason.startswith("operation aten._local_scalar_dense.default in module '1.1': DataDependentOutputException")
    assert "\n" not in reason


def test_an_operation_inside_a_library_module_names_that_module() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(5, 4))
    reason = refusal_of(failure(model), model)
    assert reason.startswith("operation aten.")
    assert " in module '1': RuntimeError: " in reason
    assert "[2, 4] X [5, 4]" in reason


def test_an_error_outside_the_submodules_names_no_module() -> None:
    model = Raises(ValueError("too short"))
    assert refusal_of(failure(model), model) == "ValueError: too short"


@pytest.mark.parametrize("error", [AssertionError("odd length"), AttributeError("no such thing"), NameError("x")])
def test_an_assertion_in_the_users_model_is_a_reason(error: Exception) -> None:
    model = nested(Raises(error))
    reason = refusal_of(failure(model), model)
    assert reason == f"in module '1.1': {type(error).__name__}: {error}"


def test_a_defect_in_onecurve_is_raised_again() -> None:
    error = failure_in_own_code()
    with pytest.raises(AttributeError) as caught:
        refusal_of(error, nn.Linear(2, 2))
    assert caught.value is error
    with pytest.raises(AttributeError):
        explain_trace_failure(error, nn.Linear(2, 2), "pipeline")


def test_a_refusal_by_onecurve_is_repeated_as_it_is() -> None:
    with pytest.raises(OnecurveError) as caught:
        raise OnecurveError("block 'layers.3': it returns no tensor")
    assert refusal_of(caught.value, nn.Linear(2, 2)) == "block 'layers.3': it returns no tensor"


def test_an_error_in_user_code_is_explained_by_its_cause() -> None:
    model = nested(Raises(KeyError("weights")))
    cause = failure(model)
    with pytest.raises(UserCodeError) as caught:
        raise UserCodeError("model: forward raised KeyError") from cause
    assert refusal_of(caught.value, model) == "in module '1.1': KeyError: 'weights'"


@pytest.mark.parametrize(
    ("error", "level"), [(RuntimeError("unsupported"), logging.INFO), (ValueError("unexpected"), logging.WARNING)]
)
def test_an_unexpected_kind_of_error_is_logged_as_a_warning(
    error: Exception, level: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onecurve")
    model = nested(Raises(error))
    reason = explain_trace_failure(failure(model), model, "pipeline")
    assert reason == f"in module '1.1': {type(error).__name__}: {error}"
    (record,) = caplog.records
    assert record.levelno == level
    assert record.getMessage().startswith("pipeline: ")
    assert record.getMessage().endswith(reason)
