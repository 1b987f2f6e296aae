"""Measure what it costs that a run can go on after a failure: snapshots in memory, and a thread that watches each rank.

`python benchmarks/overhead_kept.py --json`; `with_partner` needs root

In one run, blocks of 24 steps with and without alternate (overhead_kept_job.py), and neighbouring blocks are compared:
the speed of a shared machine drifts by a third within minutes. A snapshot may come in a few of the blocks only, so

    ratio = median over the pairs without a snapshot + what a snapshot costs / time between two snapshots

where the cost is the mean time by which a block with a snapshot is longer than that median says. If all blocks have
one, the ratio is their median. The 95 % confidence intervals are bootstrapped.
`with_partner`: on two emulated hosts with a core each and a link of 1 Gbit/s, over which each also sends its snapshots
to the other.
"""

import argparse
import json
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from logged_process import LoggedProcess, process_on
from namespaces import emulated_hosts
from overhead import show, with_interval
from overhead_kept_job import BLOCK, SNAPSHOT
from watched_run import Records

JOB = Path(__file__).parent / "overhead_kept_job.py"
_PLAN = "replicate2 mb8"
_TIMEOUT = 3600.0
_SAMPLES = 1000
"""Bootstrap samples."""


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
    blocks = [sum(steps[begin : begin + BLOCK]) for begin in range(0, len(steps), BLOCK)]
    snapshots = {int(line.split()[-1]) for line in processes[0].output().splitlines() if SNAPSHOT in line}
    with_snapshot = {step // BLOCK for step in snapshots if step >= BLOCK}
    pairs = [Pair(blocks[n - 1], blocks[n], n in with_snapshot) for n in range(2, len(blocks), 2)]
    value, interval = total(pairs)
    told = [record["text"] for record in records.all() if record.get("event") == "snapshots"]
    return {
        "ratio": value,
        "interval": interval,
        "without_snapshot": watched(pairs),
        "snapshots": len(with_snapshot),
        "every": told[-1] if told else "",
    }


@dataclass(frozen=True)
class Pair:
    """Seconds of two neighbouring blocks of steps."""

    off: float
    on: float
    has_snapshot: bool


def watched(pairs: Sequence[Pair]) -> float:
    """The ratio of the steps without a snapshot."""
    return median([pair.on / pair.off for pair in pairs if not pair.has_snapshot] or [math.nan])


def estimate(pairs: Sequence[Pair]) -> float:
    if all(pair.has_snapshot for pair in pairs):
        return median(pair.on / pair.off for pair in pairs)
    base = watched(pairs)
    cost = sum(pair.on - base * pair.off for pair in pairs if pair.has_snapshot)
    return base + cost / sum(pair.off for pair in pairs)


def total(pairs: Sequence[Pair]) -> tuple[float, tuple[float, float]]:
    """The ratio of all steps, and its confidence interval: pairs of both kinds are drawn each for itself."""
    rng = random.Random(0)
    kinds = [[pair for pair in pairs if pair.has_snapshot is kind] for kind in (False, True)]
    found = sorted(
        estimate([pair for kind in kinds if kind for pair in rng.choices(kind, k=len(kind))]) for _ in range(_SAMPLES)
    )
    return estimate(pairs), (found[int(0.025 * _SAMPLES)], found[int(0.975 * _SAMPLES)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks (default: 60)")
    measures = {"alone": alone, "with_partner": with_partner}
    parser.add_argument("--only", choices=measures)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, measure in measures.items():
            if chosen.only not in (None, name):
                continue
            found[name] = measure(Path(folder) / name, chosen.pairs)
            value = with_interval(found[name]["ratio"], found[name]["interval"])
            show(name.removeprefix("with_"), f"on / off {value}, {found[name]['every']}")
    if chosen.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
