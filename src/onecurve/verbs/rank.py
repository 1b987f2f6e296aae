"""The entry point of every launched rank: `python -m onecurve.verbs.rank VERB REQUEST`, with the request as JSON."""

import os
import sys
from collections.abc import Callable

from onecurve.describe.errors import full_text
from onecurve.launch.failure_file import write_failure
from onecurve.launch.stop import StopRequest


def main(verb: str, request: str) -> int:
    """Do the work of one rank; return the exit status."""
    with StopRequest(launched=True) as stop:  # before torch is imported, which takes seconds
        try:
            _work_of(verb)(request, stop)
        except Exception as error:  # the outermost frame of a rank: whatever it was, the launcher reports it
            text = report_failure(error)
            if text is not None:
                print(text, file=sys.stderr)
            return 1
    return 0


def _work_of(verb: str) -> Callable[[str, StopRequest], object]:
    if verb == "run":
        from onecurve.verbs.run_worker import run_as_rank

        return run_as_rank
    if verb == "probe":
        from onecurve.verbs.probe_worker import probe_as_rank

        return probe_as_rank
    from onecurve.verbs.check_worker import check_as_rank

    return check_as_rank


def report_failure(error: Exception) -> str | None:
    """Leave a failure for the agent that started this rank, which shows it once; without an agent, return the text."""
    return None if write_failure(error) else full_text(error)


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Everything is written and the process group is left. Torch's threads sometimes abort the process while the
    # interpreter shuts down ("terminate called without an active exception"), which would report a finished job as
    # failed; so the interpreter is not shut down.
    os._exit(status)
