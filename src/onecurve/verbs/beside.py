"""Work done beside other work: in a copy of this process, where one can be made safely."""

import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Outcome = TypeVar("Outcome")


def beside(work: Callable[[], Outcome]) -> Callable[[], Outcome]:
    """Begin the work; what is returned waits for its outcome, which must be plain data.

    A copy of a process has none of its threads, and may wait for ever for what one of them held. So where there are
    others, and where the copy failed, the work is done here, when its outcome is asked for.
    """
    if not _single():
        return work
    reader, writer = os.pipe()
    copy = os.fork()
    if copy == 0:
        _work_and_leave(work, writer)
    os.close(writer)

    def outcome() -> Outcome:
        with open(reader, "rb") as given:
            found = given.read()
        _, status = os.waitpid(copy, 0)
        return pickle.loads(found) if status == 0 else work()

    return outcome


def _work_and_leave(work: Callable[[], object], writer: int) -> None:
    status = 1
    try:
        found = pickle.dumps(work())
        with open(writer, "wb") as out:
            out.write(found)
        status = 0
    finally:
        os._exit(status)


def _single() -> bool:
    """Whether this process has one thread. Other systems than Linux do not tell so simply."""
    tasks = Path("/proc/self/task")
    return tasks.exists() and len(list(tasks.iterdir())) == 1
