"""Finds the cause among the failures of all ranks, and makes one message of it."""

import signal
from collections.abc import Sequence

from onecurve.describe.assignment import RankFailure
from onecurve.describe.errors import OnecurveError

CAUSE_SECONDS = 5.0
"""How long a failure that may follow from another one waits for that one."""
_NOTICE_SECONDS = 3.0
"""Errors that a killed rank causes on others can be reported this long before its end is noticed."""
_MEMORY_FIX = (
    "To need less memory, use a plan with a smaller micro-batch and more rounds (mb4×2 instead of mb8), with "
    "recompute=full, or with 'shard'; `onecurve plan` shows what each of them needs"
)


class RankFailedError(OnecurveError):
    """A rank ended before its work was done."""

    is_input_error = False
    """True if the rank refused its input, and did not fail."""


def first_failure(failures: Sequence[RankFailure]) -> RankFailedError:
    """The failure that the others follow from, as an error.

    When one rank fails, others lose their connection to it, or torch aborts them: neither is the cause if another rank
    has failed by itself. The others count by their time. A rank that a signal killed could not report it itself, and
    its end is noticed after the errors that it causes: it comes before errors of about the same time.
    """
    failure = min(failures, key=_cause_order)
    if failure.is_out_of_memory:
        how = f": {failure.text}" if failure.text else ", and the kernel killed it"
        return RankFailedError(f"rank {failure.rank} ran out of memory{how}\n{_MEMORY_FIX}")
    if not failure.text:
        return RankFailedError(f"rank {failure.rank} {_ending(failure.exit_status)}")
    error = RankFailedError(failure.text if failure.is_input_error else f"rank {failure.rank} failed: {failure.text}")
    error.is_input_error = failure.is_input_error
    return error


def is_cause(failure: RankFailure) -> bool:
    """True if the failure does not follow from that of another rank, as a lost connection or torch's abort does."""
    return not failure.lost_connection and failure.exit_status != -signal.SIGABRT


def _cause_order(failure: RankFailure) -> tuple[int, float]:
    """Least for the cause: how likely the failure follows from another one, then its time."""
    if failure.text:
        return 2 if failure.lost_connection else 0, failure.time
    return 1 if failure.exit_status == -signal.SIGABRT else 0, failure.time - _NOTICE_SECONDS


def _ending(status: int) -> str:
    """How a rank ended that said nothing about it, as the end of a sentence."""
    if status >= 0:
        return f"ended with exit status {status} and left no error message"
    name = signal.Signals(-status).name
    hint = (
        f"; the kernel does this when the host runs out of memory: check 'dmesg'. {_MEMORY_FIX}"
        if name == "SIGKILL"
        else ""
    )
    return f"was killed by {name}{hint}"
