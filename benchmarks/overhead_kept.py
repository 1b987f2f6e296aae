"""Measure what it costs that a run can go on after a failure: snapshots in memory, and a thread that watches each rank.

`python benchmarks/overhead_kept.py --json`; `with_partner` needs root

In one run, blocks of 100 steps with and without alternate (overhead_kept_job.py). A snapshot is taken every few dozen
steps, so whole blocks are compared: the ratio is the median over pairs of neighbouring blocks, with a bootstrapped 95 %
confidence interval. `with_partner`: on two emulated hosts with a core each and a link of 1 Gbit/s, over which each also
sends its snapshots to the other.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from logged_process import LoggedProcess, process_on
from namespaces import emulated_hosts
from overhead import ratio, show, with_interval
from overhead_kept_job import BLOCK
from watched_run import Records

JOB = Path(__file__).parent / "overhead_kept_job.py"
_PLAN = "replicate2 mb8"
_FIRST = 10
"""Steps of a block that do not count: a snapshot of the block before may still be on its way."""
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
    blocks: dict[int, float] = {}
    for record in records.all():
        if record["kind"] == "step" and (record["step"] - 1) % BLOCK >= _FIRST:
            block = (record["step"] - 1) // BLOCK
            blocks[block] = blocks.get(block, 0.0) + sum(record["seconds"].values())
    seconds = [blocks[block] for block in sorted(blocks)][1:]  # without, with, without, with, …
    value, interval = ratio(seconds[1::2], seconds[::2])
    told = [record["text"] for record in records.all() if record.get("event") == "snapshots"]
    return {"ratio": value, "interval": interval, "snapshots": told[-1] if told else ""}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=30, help="pairs of blocks (default: 30)")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in {"alone": alone, "with_partner": with_partner}.items():
            found[name] = measure(Path(folder) / name, chosen.pairs)
            value = with_interval(found[name]["ratio"], found[name]["interval"])
            show(name, f"on / off {value}, {found[name]['snapshots']}")
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
