"""Explains why a trace or a trial on fake tensors failed: which operation of which module, and what it said.

A trial may fail because of the model, which is a reason to refuse a split. It may also fail because of a defect in
onecurve itself, which must not be mistaken for a property of the model.
"""

import logging
import traceback
from types import TracebackType

from torch import nn
from torch._ops import OpOverload

from onecurve.describe.errors import OnecurveError, is_own_frame

_log = logging.getLogger(__name__)
_OWN_DEFECTS = (AssertionError, AttributeError, NameError)


def raise_own_defect(error: Exception) -> None:
    """Raise the error again if it is a defect in onecurve's own code, and not a property of the model."""
    if isinstance(error, _OWN_DEFECTS) and is_own_frame(_frames(error)[-1]):
        raise error


def refusal_of(error: Exception, model: nn.Module) -> str:
    """Return why a trial of `model` failed: the operation, the module, and the message, in one line."""
    raise_own_defect(error)
    return _reason(error, _frames(error), model)


def explain_trace_failure(error: Exception, model: nn.Module, what: str) -> str:
    """Return and log why a trace of `model` failed. `what` names it in the log, for example "pipeline"."""
    reason = refusal_of(error, model)
    if isinstance(error, OnecurveError | RuntimeError):  # includes torch's own errors for unsupported operations
        _log.info("%s: %s", what, reason)
    else:
        _log.warning("%s: unexpected error: %s", what, reason, exc_info=error)
    return reason


def _reason(error: Exception, frames: list[TracebackType], model: nn.Module) -> str:
    if isinstance(error, OnecurveError) and not isinstance(error.__cause__, Exception):
        return str(error)  # a refusal of our own, which names module and reason already
    cause = error.__cause__ if isinstance(error, OnecurveError) else error
    assert isinstance(cause, Exception)
    if cause is not error:
        frames = [*frames, *_frames(cause)]
    operation, module = _operation(frames), _module(frames, model)
    where = [f"operation {operation}" if operation else "", f"in module {module!r}" if module else ""]
    message = str(cause).strip().partition("\n")[0]
    return f"{' '.join(filter(None, [*where]))}{': ' if any(where) else ''}{type(cause).__name__}: {message}"


def _operation(frames: list[TracebackType]) -> str:
    """The innermost torch operation that was being dispatched."""
    for frame in reversed(frames):
        for value in frame.tb_frame.f_locals.values():
            if isinstance(value, OpOverload):
                return str(value)
    return ""


def _module(frames: list[TracebackType], model: nn.Module) -> str:
    """The innermost submodule of the model whose forward was running."""
    names: dict[int, str] = {id(module): name for name, module in model.named_modules()}
    for frame in reversed(frames):
        name = names.get(id(frame.tb_frame.f_locals.get("self")), "")
        if name:
            return name
    return ""


def _frames(error: BaseException) -> list[TracebackType]:
    frames = []
    trace = error.__traceback__
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    assert frames, traceback.format_exception(error)
    return frames
