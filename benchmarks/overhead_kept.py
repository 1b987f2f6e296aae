"""Measure what it costs that a run can go on after a failure: snapshots in memory, and a thread that watches each rank.

`python benchmarks/overhead_kept.py --json`; `with_partner` needs root

In one run, blocks of 24 steps with and without alternate (overhead_kept_job.py). A snapshot is taken every few dozen
steps, so whole blocks are compared: the ratio is the median over pairs of neighbouring blocks, with a bootstrapped 95 %
confidence interval. Blocks are short, because the speed of a shared machine drifts by a third within minutes.
`with_partner`: on two emulated hosts with a core each and a link of 1 Gbit/s, over which each also sends its snapshots
to the other.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

from logged_process import LoggedProcess, process_on
from namespaces import emulated_hosts
from overhead import ratio, show, with_interval
from overhead_kept_job import BLOCK
from watched_run import Records

JOB = Path(__file__).parent / "overhead_kept_job.py"
_PLAN = "replicate2 mb8"
_FIRST = 4
"""Steps of a block without that do not count: a snapshot of the block before may still be on its way."""
_TIMEOUT = 3600.0


def command(folder: Path, pairs: int, *options: str) -> list[str]:
    steps = f"steps={(2 * pairs + 1) * BLOCK}"  # in the first block everything is warmed up
    words = [sys.executable, "-m", "onecurve", "run", str(JOB), steps, "--plan", _PLAN, "--no-check"]
    return [*words, "--out", str(folder), *options]


def alone(folder: Path, pairs: int) -> dict[str, Any]:
    with LoggedProcess(command(folder, pairs)) as process:
        return result([process], folder)


def with_partner(folder: Path, pairs: int) -> dict[str, Any]:
    with emulated_hosts(2, "1gbit", (1.0, 1.0)) as hosts, ExitStack() as stack:
        words = command(folder, pairs, "--hosts", "2")
        return result([stack.enter_context(process_on(host, words)) for host in hosts], folder)


def result(processes: Sequence[LoggedProcess], folder: Path) -> dict[str, Any]:
    for process in processes:
        if process.end(_TIMEOUT) != 0:
            raise SystemExit(process.output()[-3000:])
    records = Records(folder)
    steps = [sum(record["seconds"].values()) for record in records.all() if record["kind"] == "step"]
    blocks = [steps[begin : begin + BLOCK] for begin in range(0, len(steps), BLOCK)]
    without, kept = ([mean(block[first:]) for block in blocks[n::2]] for n, first in ((1, _FIRST), (2, 0)))
    value, interval = ratio(kept, without)
    told = [record["text"] for record in records.all() if record.get("event") == "snapshots"]
    return {"ratio": value, "interval": interval, "snapshots": told[-1] if told else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks (default: 60)")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in {"alone": alone, "with_partner": with_partner}.items():
            found[name] = measure(Path(folder) / name, chosen.pairs)
            value = with_interval(found[name]["ratio"], found[name]["interval"])
            show(name.removeprefix("with_"), f"on / off {value}, {found[name]['snapshots']}")
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
