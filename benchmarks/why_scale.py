"""`onecurve why` on synthetic records of many ranks and steps: its time, its memory, and the size of its page.

`python benchmarks/why_scale.py --json`: `seconds`, `megabytes` (the most resident memory) and `page_megabytes`.
"""

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from onecurve.describe.record import IntervalRecord, MemoryRecord, StartRecord
from onecurve.report.intervals import interval_length
from onecurve.report.sink import JsonLines
from onecurve.runs.folder import records_file

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
from synthetic_run import STEP

_CAUSES = ("data", "evaluation", "checkpoint", "other", "copy", "forward", "backward", "replicate", "update", "sync")


def write_records(folder: Path, ranks: int, steps: int) -> None:
    """Write what the ranks of a run would: a line per step on rank 0, a line per interval on the others."""
    draw = random.Random(0)
    for rank in range(ranks):
        sink = JsonLines(records_file(folder, rank))
        start = StartRecord(
            plan=f"replicate{ranks} mb1", ranks=ranks, device="cpu", parameters=10**9, steps=steps,
            host=f"h{rank // 8}", cores=8, threads=8, host_cores=64, global_batch=ranks,
            seconds={"launch": 9.0}, time=1e9,
        )  # fmt: skip
        sink.write(start)
        sink.write(MemoryRecord({"weights": 10**9, "activations": 10**9}, 2 * 10**9))
        slowness = 1.5 if rank == ranks // 2 else 1.0
        last = 0
        for step in range(1, steps + 1):
            count = step - last
            if rank and step % interval_length(step) and step != steps:
                continue
            seconds = {cause: count * slowness * draw.uniform(0.01, 0.02) for cause in _CAUSES}
            last = step
            if rank == 0:
                sink.write(replace(STEP, step=step, loss=10 / step, seconds=seconds, time=1e9 + step, samples=step))
            else:
                sink.write(IntervalRecord(step, count, seconds, deviation=0.001, memory=1 << 30, time=1e9 + step))
        sink.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10_000)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run, page = Path(folder) / "run", Path(folder) / "page.html"
        write_records(run, chosen.ranks, chosen.steps)
        begin = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "onecurve", "why", str(run), "--html", str(page)], check=True, stdout=sys.stderr
        )
        found = {
            "ranks": chosen.ranks,
            "steps": chosen.steps,
            "record_megabytes": round(sum(file.stat().st_size for file in run.rglob("*.jsonl")) / 1e6, 1),
            "seconds": round(time.perf_counter() - begin, 2),
            "megabytes": round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3, 1),
            "page_megabytes": round(page.stat().st_size / 1e6, 3),
        }
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
