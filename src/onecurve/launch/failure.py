"""Reports the failure of a rank once, with its rank number, from the process that started the ranks.

Each rank leaves its failure in a file (failure_file.py). One rank's failure makes others fail: here the cause is found.
"""

import signal
from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from onecurve.describe.errors import OnecurveError

_NOTICE_SECONDS = 3.0
"""The agent notices a killed rank within this time, its rounding to whole seconds included."""


class RankFailedError(OnecurveError):
    """A rank ended before its work was done."""

    is_input_error = False
    """True if the rank refused its input, and did not fail."""


def first_failure(failures: Mapping[int, ProcessFailure]) -> RankFailedError:
    """The failure that the others follow from, as an error.

    When one rank fails, others lose their connection to it, torch may abort them, and the agent ends the rest with
    SIGTERM: none of these is the cause if another rank has failed by itself. The others count by their time. A rank
    that a signal killed left no file with its time, and the agent noticed its end only after the errors that it caused
    on other ranks: it comes before errors of about the same time.
    """
    rank, failure = min(failures.items(), key=lambda item: _cause_order(item[1]))
    data = failure.error_file_data
    text = _text(data)
    if text is None:
        return RankFailedError(f"rank {rank} {_ending(failure)}")
    error = RankFailedError(text if data.get("own") else f"rank {rank} failed: {text}")
    error.is_input_error = bool(data.get("own"))
    return error


def _cause_order(failure: ProcessFailure) -> tuple[int, float]:
    """Least for the cause: how likely the failure follows from another one, then its time."""
    if "time" in failure.error_file_data:
        lost_connection = failure.error_file_data.get("lost_connection", False)
        return 2 if lost_connection else 0, float(failure.error_file_data["time"])
    consequence = {-signal.SIGABRT: 1, -signal.SIGTERM: 3}.get(failure.exitcode, 0)
    return consequence, failure.timestamp - _NOTICE_SECONDS


def _text(data: Mapping[str, Any]) -> str | None:
    message = data.get("message")
    return str(message["extraInfo"]["py_callstack"]) if isinstance(message, dict) else None


def _ending(failure: ProcessFailure) -> str:
    """How a rank ended that left no error file, as the end of a sentence."""
    if failure.exitcode >= 0:
        return f"ended with exit status {failure.exitcode} and left no error message"
    name = signal.Signals(-failure.exitcode).name
    hint = (
        "; the kernel does this when the host runs out of memory: check 'dmesg', and use a smaller micro-batch or a "
        "plan with 'shard'"
        if name == "SIGKILL"
        else ""
    )
    return f"was killed by {name}{hint}"
