"""Errors that a user can fix. Their message names the thing, the value, the limit and the fix."""

import traceback
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal

SignalName = Literal["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"]

_PACKAGE = str(Path(__file__).parent.parent)


class OnecurveError(Exception):
    """An error in the user's input or environment. Only its message is shown, without a traceback.

    The message names the cause, the value, the limit and the fix.

    Example::

        try:
            plan = oc.Plan.parse("replicat2 mb8")
        except oc.OnecurveError as error:
            print(error)  # … 'replicat2' is no axis, precision or option (did you mean 'replicate'?)
    """


class InterruptError(OnecurveError):
    """A signal ended the work before it was done."""

    def __init__(self, text: str, signal: SignalName) -> None:
        super().__init__(text)
        self.signal = signal


class UserCodeError(OnecurveError):
    """The user's own code (a dataset, a loss, a constructor) raised. It is shown with the traceback of the cause."""


class CorruptedReplicaError(OnecurveError):
    """The weights of some ranks are not those of the other replicas."""

    def __init__(self, ranks: Sequence[int]) -> None:
        super().__init__("its weights are not those of the other replicas")
        self.ranks = ranks


class FaultyRankError(OnecurveError):
    """The audit has found that a rank computes wrong gradients."""

    def __init__(self, text: str, ranks: Sequence[int]) -> None:
        super().__init__(text)
        self.ranks = ranks


def is_refusal(error: BaseException) -> bool:
    """True if onecurve itself refuses the job or the plan; False if the error reports what other code has raised."""
    return isinstance(error, OnecurveError) and not isinstance(error, UserCodeError) and error.__cause__ is None


def full_text(error: BaseException) -> str:
    """Return the text to show for an error: its message, plus a traceback if code has to be inspected."""
    if isinstance(error, UserCodeError) and error.__cause__ is not None:
        return f"{error}\n\n{_traceback_of_user_code(error.__cause__)}"
    if isinstance(error, OnecurveError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _traceback_of_user_code(error: BaseException) -> str:
    """Format the traceback without the leading frames that belong to this package."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and is_own_frame(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def is_own_frame(trace: TracebackType) -> bool:
    """True if the frame is code of this package, not the user's or a library's."""
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
