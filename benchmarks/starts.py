"""Start runs from one template again and again, and count those that hang: `python benchmarks/starts.py --json`.

Every start forks two ranks, which build a model, train eight steps and end. A start that takes longer than a minute has
hung.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

from onecurve.describe.convert import to_json
from onecurve.describe.requests import RunRequest
from onecurve.launch.local import LocalRanks
from onecurve.verbs.program import PROGRAM

_JOB = Path(__file__).parent.parent / "tests" / "jobs" / "small.py"
_HUNG_SECONDS = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    seconds: list[float] = []
    with tempfile.TemporaryDirectory() as folder:
        request = to_json(
            RunRequest(
                script=str(_JOB),
                arguments=("epochs=1",),
                out=f"{folder}/out",
                fresh=True,
                quiet=True,
                track=(),
                check=False,
            )
        )
        with LocalRanks(PROGRAM, "run", request) as launcher:
            while len(seconds) < chosen.count:
                begin = time.perf_counter()
                ended = launcher.run("run", request, 2)
                if ended.results is None:
                    raise SystemExit("interrupted")
                seconds.append(time.perf_counter() - begin)
                if len(seconds) % 50 == 0:
                    print(f"{len(seconds)} starts, {statistics.median(seconds):.2f} s each", flush=True)
    found = {
        "starts": len(seconds),
        "hangs": sum(each > _HUNG_SECONDS for each in seconds),
        "median_s": statistics.median(seconds),
        "max_s": max(seconds),
    }
    print(json.dumps(found) if chosen.json else found)


if __name__ == "__main__":
    main()
