"""Reports the failure of a rank once, with its rank number, from the process that started the ranks.

A rank writes its failure to the file that torch's elastic agent (ours or torchrun's) names in an environment variable.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from onecurve.describe.errors import OnecurveError, UserCodeError, full_text

_ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_NOTICE_SECONDS = 3.0
"""The agent notices a killed rank within this time, its rounding to whole seconds included."""


class RankFailedError(OnecurveError):
    """A rank ended before its work was done."""

    is_input_error = False
    """True if the rank refused its input, and did not fail."""


class RankStalledError(OnecurveError):
    """A rank made no progress for too long."""


def write_failure(error: BaseException) -> bool:
    """Write the failure to the agent's error file; return False if there is no agent."""
    path = os.environ.get(_ERROR_FILE_VARIABLE)
    if path is None:
        return False
    is_input_error = isinstance(error, OnecurveError) and not isinstance(error, UserCodeError | RankStalledError)
    extra = {"py_callstack": full_text(error), "timestamp": str(int(time.time()))}
    # torchrun reads `message`. `time` is ours, because the agent's timestamps have a resolution of one second only and
    # cannot tell which rank failed first; `own` marks errors that are shown without a rank number.
    data = {
        "message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra},
        "time": time.time(),
        "own": is_input_error,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)
    return True


def first_failure(failures: Mapping[int, ProcessFailure]) -> RankFailedError:
    """The failure that the others follow from, as an error.

    When one rank fails, the agent ends the others with SIGTERM, so these come last. The others count by their time. A
    rank that a signal killed left no file with its time, and the agent noticed its end only after the errors that it
    caused on other ranks: it comes before errors of about the same time.
    """
    rank, failure = min(failures.items(), key=lambda item: _cause_order(item[1]))
    data = failure.error_file_data
    text = _text(data)
    if text is None:
        return RankFailedError(f"rank {rank} {_ending(failure)}")
    error = RankFailedError(text if data.get("own") else f"rank {rank} failed: {text}")
    error.is_input_error = bool(data.get("own"))
    return error


def _cause_order(failure: ProcessFailure) -> tuple[bool, float]:
    if "time" in failure.error_file_data:
        return False, float(failure.error_file_data["time"])
    ended_by_agent = failure.exitcode == -signal.SIGTERM
    return ended_by_agent, failure.timestamp - _NOTICE_SECONDS


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
