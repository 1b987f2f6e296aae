"""The process of one trial of `onecurve tune`; its arguments: PARENT CORES SCRIPT OUT NAME=VALUE…"""

import os
import signal
import sys

from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.device.parent_process import die_with_parent


def main(words: list[str]) -> int:
    parent, cores, script, out, *arguments = words
    die_with_parent(int(parent), signal.SIGTERM)
    os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
    from onecurve.verbs.run import run

    try:
        run(script, arguments, out=out, quiet=True)
    except InterruptError:
        return os.EX_TEMPFAIL
    except OnecurveError as error:
        print(error, file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
