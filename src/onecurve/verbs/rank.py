"""What every launched rank executes: `python -m onecurve.verbs.rank VERB REQUEST`, the request as JSON."""

import os
import sys
from collections.abc import Callable

from onecurve.describe.errors import full_text
from onecurve.launch.stop import StopRequest


def main(verb: str, request: str) -> int:
    with StopRequest(launched=True) as stop:  # before torch is imported, which takes seconds
        work: Callable[[str, Callable[[], bool]], object]
        if verb == "run":
            from onecurve.verbs.run_worker import run_as_rank as work
        elif verb == "probe":
            from onecurve.verbs.probe_worker import probe_as_rank as work
        else:
            from onecurve.verbs.check import check_as_rank as work
        try:
            work(request, stop)
        except Exception as error:
            text = account_for(error)
            if text is not None:
                print(text, file=sys.stderr)
            return 1
    return 0


def account_for(error: Exception) -> str | None:
    """Leave a failure for the agent that started this rank to show once; without an agent, the text to show."""
    from onecurve.launch.failure import write_failure

    return None if write_failure(error) else full_text(error)


if __name__ == "__main__":
    status = main(*sys.argv[1:])
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Everything is written and the other ranks are left. What torch's threads do while the interpreter is taken down is
    # none of our business any more: some hundred ranks in, one aborted there ("terminate called without an active
    # exception") and a finished job was told to have failed.
    os._exit(status)
