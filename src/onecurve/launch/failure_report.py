"""What a rank says about its failure: to the launcher that forked it, or to torchrun in a file.

This module imports nothing slow and nothing that may be missing, because it also reports that torch cannot be imported.
"""

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from typing import Any

from onecurve.describe.errors import CorruptedReplicaError, InterruptError, OnecurveError, UserCodeError, full_text

_ERROR_FILE_VARIABLE = "TORCHELASTIC_ERROR_FILE"
_WAIT_SECONDS = 5.0
"""The rank that failed first needs less to write its own failure."""
_LOST_CONNECTION = re.compile(
    r"gloo/(transport|rendezvous)"  # gloo names the file of its sources in every message about a connection
    r"|^(RuntimeError|Dist\w+Error): .*(Connection (closed|reset) by peer|Broken pipe)"  # not the user's OSError
    r"|ncclRemoteError|ncclSystemError|NCCL communicator was aborted|Watchdog caught collective operation timeout"
    r"|(sendBytes|recvBytes|recvValue|recvVector) failed|Did the remote server shutdown or crash"
    r"|Timed out (initializing process group|waiting for clients)",
    re.DOTALL,
)
"""What gloo, NCCL and torch's store say about a peer that is gone or does not answer."""


_tell_launcher: Callable[[BaseException], None] | None = None


class RankStalledError(OnecurveError):
    """A rank made no progress for too long."""


def report_of(error: BaseException) -> dict[str, Any]:
    """What a rank says about its failure: the fields of a RankFailure."""
    lost = lost_connection(error)
    is_input_error = isinstance(error, OnecurveError) and not isinstance(error, UserCodeError | RankStalledError)
    return {
        "time": time.time(),
        "text": f"the connection to another rank was lost: {lost}" if lost else full_text(error),
        "is_input_error": is_input_error and not lost,
        "is_interrupt": isinstance(error, InterruptError),
        "lost_connection": bool(lost),
        "is_corrupted": isinstance(error, CorruptedReplicaError),
        "is_out_of_memory": any(map(is_out_of_memory, _chain(error))),
    }


def report_to(tell: Callable[[BaseException], None]) -> None:
    """Let `report_failure` tell failures to the launcher that forked this process."""
    global _tell_launcher
    _tell_launcher = tell


def report_failure(error: BaseException) -> bool:
    """Tell the launcher of this rank, ours or torchrun, why it ends; return False if there is none to show it."""
    if _tell_launcher is not None:
        _tell_launcher(error)
        return True
    return _write_for_torchrun(error)


def _write_for_torchrun(error: BaseException) -> bool:
    """Write the failure to the file that torchrun shows; return False if torchrun did not start this process, or the
    file cannot be written.

    A rank that has only lost the connection to another rank then waits: torchrun ends all ranks as soon as it sees one
    that has ended, and the rank that failed first may not have written its failure yet.
    """
    path = os.environ.get(_ERROR_FILE_VARIABLE)
    if path is None:
        return False
    report = report_of(error)
    extra = {"py_callstack": report["text"], "timestamp": str(int(report["time"]))}
    message = report["text"] if report["lost_connection"] else f"{type(error).__name__}: {error}"
    try:
        with open(f"{path}.part", "w", encoding="utf-8") as file:  # torchrun cannot read a file that is cut off
            json.dump({"message": {"message": message, "extraInfo": extra}}, file)
        os.replace(f"{path}.part", path)
    except OSError:
        return False
    if report["lost_connection"]:
        time.sleep(_WAIT_SECONDS)
    return True


def lost_connection(error: BaseException) -> str:
    """Return the error that says that a peer is gone or does not answer, or "" if this one has another reason.

    Such an error also arises inside the user's code, for example in the forward of a sharded model.
    """
    texts = (f"{type(each).__name__}: {each}".strip() for each in _chain(error))
    return next((text for text in texts if _LOST_CONNECTION.search(text)), "")


def is_out_of_memory(error: BaseException) -> bool:
    """True for Python's error, torch's on accelerators, and torch's on the CPU, which has no type of its own."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or (isinstance(error, RuntimeError) and "can't allocate memory" in str(error))
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error that was raised first, then those that were raised from it."""
    if error is not None:
        yield from _chain(error.__cause__)
        yield error
