"""What goes wrong for reasons a user can mend. The message names the thing, the value, the limit and the mend."""

import traceback
from pathlib import Path
from types import TracebackType

_PACKAGE = str(Path(__file__).parent.parent)


class OnecurveError(Exception):
    """An error of the user's input or environment: shown as its message alone, without a traceback."""


class UserCodeError(OnecurveError):
    """The user's own code (a dataset, a loss, a constructor) raised: shown with the traceback of the cause."""


def full_text(error: BaseException) -> str:
    """What a person needs to see of an error: its message, and a traceback where code has to be looked at."""
    if isinstance(error, UserCodeError) and error.__cause__ is not None:
        return f"{error}\n\n{_from_their_code_on(error.__cause__)}"
    if isinstance(error, OnecurveError):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def _from_their_code_on(error: BaseException) -> str:
    """The traceback from the first frame that is not ours."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_ours(trace):
        trace = trace.tb_next
    return "".join(traceback.format_exception(type(error), error, trace)).rstrip()


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(_PACKAGE)
