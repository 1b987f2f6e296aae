"""Writes the failure of a rank to the file that torch's elastic agent (ours or torchrun's) names in the environment.

This module imports nothing slow and nothing that may be missing, because it also reports that torch cannot be imported.
"""

import json
import os
import re
import time
from collections.abc import Iterator

from onecurve.describe.errors import OnecurveError, UserCodeError, full_text

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


class RankStalledError(OnecurveError):
    """A rank made no progress for too long."""


def write_failure(error: BaseException) -> bool:
    """Write the failure to the agent's error file; return False if there is no agent or the file cannot be written.

    A rank that has only lost the connection to another rank then waits: the agent ends all ranks as soon as it sees
    one that has ended, and the rank that failed first may not have written its failure yet.
    """
    path = os.environ.get(_ERROR_FILE_VARIABLE)
    if path is None:
        return False
    lost = lost_connection(error)
    is_input_error = isinstance(error, OnecurveError) and not isinstance(error, UserCodeError | RankStalledError)
    message = f"the connection to another rank was lost: {lost}" if lost else f"{type(error).__name__}: {error}"
    extra = {"py_callstack": message if lost else full_text(error), "timestamp": str(int(time.time()))}
    # torchrun reads `message`. `time` is ours, because the agent's timestamps have a resolution of one second only and
    # cannot tell which rank failed first; `own` marks errors that are shown without a rank number.
    data = {
        "message": {"message": message, "extraInfo": extra},
        "time": time.time(),
        "own": is_input_error and not lost,
        "lost_connection": bool(lost),
    }
    try:
        with open(f"{path}.part", "w", encoding="utf-8") as file:  # the agent cannot read a file that is cut off
            json.dump(data, file)
        os.replace(f"{path}.part", path)
    except OSError:
        return False
    if lost:
        time.sleep(_WAIT_SECONDS)
    return True


def lost_connection(error: BaseException) -> str:
    """Return the error that says that a peer is gone or does not answer, or "" if this one has another reason.

    Such an error also arises inside the user's code, for example in the forward of a sharded model.
    """
    texts = (f"{type(each).__name__}: {each}".strip() for each in _chain(error))
    return next((text for text in texts if _LOST_CONNECTION.search(text)), "")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """The error that was raised first, then those that were raised from it."""
    if error is not None:
        yield from _chain(error.__cause__)
        yield error
