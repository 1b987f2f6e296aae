"""Asks a store again that does not answer, or says that it cannot answer now."""

import random
import sys
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from onecurve.formats.storage_time import waiting_for_storage

Result = TypeVar("Result")

GIVE_UP_SECONDS = 600.0
_FIRST_SECONDS, _LONGEST_SECONDS = 0.1, 5.0
_TELL_SECONDS = 3.0
"""A store that has been silent for so long is mentioned."""
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)
_BUSY = (408, 425, 429)
"""Answers of HTTP to a request that may be made again later."""
_OF_STORES = {
    "adlfs", "aiobotocore", "aiohttp", "azure", "botocore", "gcsfs", "google", "http", "requests", "s3fs", "urllib3",
}  # fmt: skip


def retried(call: Callable[[], Result], what: str) -> Result:
    """Return `call()`. If it fails in a way that may pass, call it again after a pause, which grows and is random, so
    that many hosts do not ask at the same moment. `what`: is asked, for a person."""
    with waiting_for_storage():
        return _retried(call, what)


def _retried(call: Callable[[], Result], what: str) -> Result:
    begin = time.monotonic()
    pause, has_told = _FIRST_SECONDS, False
    while True:
        try:
            result = call()
        except Exception as error:
            silent = time.monotonic() - begin
            if not may_pass(error) or silent > GIVE_UP_SECONDS:
                raise
            if silent > _TELL_SECONDS and not has_told:
                has_told = True
                _say(f"{what}: no answer for {silent:.0f} s ({_text(error)}); trying again until it answers")
            threading.Event().wait(pause * random.SystemRandom().uniform(0.5, 1.5))
            pause = min(2 * pause, _LONGEST_SECONDS)
            continue
        if has_told:
            _say(f"{what}: it answers again after {time.monotonic() - begin:.0f} s")
        return result


def may_pass(error: BaseException) -> bool:
    """True for errors of a connection, or of a store that is busy; False for those that stay, such as a file that does
    not exist."""
    status = getattr(error, "status", getattr(error, "code", None))
    if isinstance(status, int) and 400 <= status < 500 and status not in _BUSY:
        return False
    if isinstance(error, _FINAL) or "Credential" in type(error).__name__:
        return False
    if isinstance(error, OSError | EOFError | TimeoutError):
        return True
    return type(error).__module__.partition(".")[0] in _OF_STORES


def _text(error: BaseException) -> str:
    return " ".join(str(error).split())[:120] or type(error).__name__


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
