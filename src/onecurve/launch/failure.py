"""What is said when a rank fails: once, with its rank, by the process that started it.

The rank writes its failure into the file that torch's elastic agent (ours or torchrun's) has named for it.
"""

import json
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from onecurve.describe.errors import OnecurveError, UserCodeError, full_text

_FILE = "TORCHELASTIC_ERROR_FILE"


class RankFailedError(OnecurveError):
    """A rank ended before its work did."""


def write_failure(error: BaseException) -> bool:
    """Leave the failure for the agent to find; False where there is no agent."""
    path = os.environ.get(_FILE)
    if path is None:
        return False
    own_words = isinstance(error, OnecurveError) and not isinstance(error, UserCodeError)
    extra = {"py_callstack": full_text(error), "timestamp": str(int(time.time()))}
    # torchrun reads `message`; the rest is for us: a finer clock, to tell who failed first.
    data = {
        "message": {"message": f"{type(error).__name__}: {error}", "extraInfo": extra},
        "time": time.time(),
        "own": own_words,
    }
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file)
    return True


def first_failure(failures: Mapping[int, ProcessFailure]) -> RankFailedError:
    """The failure that the others followed from: the earliest."""
    rank, failure = min(failures.items(), key=lambda item: _time(item[1]))
    data = failure.error_file_data
    text = _text(data)
    if text is None:
        return RankFailedError(f"rank {rank} {_ending(failure)}")
    return RankFailedError(text if data.get("own") else f"rank {rank} failed: {text}")


def _time(failure: ProcessFailure) -> float:
    return float(failure.error_file_data.get("time", failure.timestamp))


def _text(data: Mapping[str, Any]) -> str | None:
    message = data.get("message")
    return str(message["extraInfo"]["py_callstack"]) if isinstance(message, dict) else None


def _ending(failure: ProcessFailure) -> str:
    if failure.exitcode >= 0:
        return f"ended with exit status {failure.exitcode} and left no message"
    name = signal.Signals(-failure.exitcode).name
    hint = (
        "; the kernel does this when memory runs out: see 'dmesg', use a smaller micro-batch or shard"
        if name == "SIGKILL"
        else ""
    )
    return f"was killed by {name}{hint}"
