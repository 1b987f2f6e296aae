"""Workers of `mode="async"` are killed: does every step count once, and how long do the others wait?

`python benchmarks/async_faults.py --seed 1 --count 5 --json`

Two of three workers are killed at a random moment, both at once; they are started again five seconds later at the
earliest. The loss is linear in the weights, so these say how often each sample has counted (counted_job.py).
`counted_once`: runs in which each sample counts once, in a parameter and in a row. `worst_wait_ms`: the longest time
between two steps that count in the three seconds after the fault, minus its median before. `--stop`: the workers are
stopped by SIGSTOP for 15 seconds instead; the run goes on without them, and what they send later does not count.
"""

import argparse
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from counted_job import LR
from safetensors.torch import load_file
from watched_run import WatchedRun, children, command_of

from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.stored_rows import read_rows
from onecurve.describe.slots import SLOTS
from onecurve.job.initial_rows import initial_rows

_JOB = Path(__file__).parent / "counted_job.py"
_STEPS, _BATCH = 1200, 8
_AFTER_SECONDS = 3.0
_STOPPED_SECONDS = 15.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--stop", action="store_true")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    rng = random.Random(chosen.seed)
    once, waits = 0, []
    for number in range(chosen.count):
        is_once, wait = _run(rng, chosen.stop)
        once += is_once
        waits.append(wait)
        print(f"{number + 1}: each counted once: {is_once}, waited {wait * 1000:.0f} ms", file=sys.stderr, flush=True)
    found = {"runs": chosen.count, "counted_once": once, "worst_wait_ms": round(max(waits) * 1000)}
    print(json.dumps(found) if chosen.json else found)


def _run(rng: random.Random, stops: bool) -> tuple[bool, float]:
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) / "run"
        words = [f"steps={_STEPS}", f"batch={_BATCH}", "--plan", f"mb{_BATCH} fp64", "--no-check"]
        run = WatchedRun(_JOB, folder, *words)
        if run.wait_for_step(1, 60) is None:
            raise SystemExit(f"the run has not begun\n{run.output()}")
        time.sleep(rng.uniform(0, 1))
        victims = rng.sample([pid for pid in children(run.process.pid) if "async_worker" in command_of(pid)], 2)
        before = len(run.records.steps(1))
        for pid in victims:
            os.kill(pid, signal.SIGSTOP if stops else signal.SIGKILL)
        if stops:
            time.sleep(_STOPPED_SECONDS)
            for pid in victims:
                os.kill(pid, signal.SIGCONT)
        if run.end() != 0:
            raise SystemExit(f"the run has not ended well\n{run.output()}")
        seconds = [sum(each["seconds"].values()) for each in run.records.all() if each["kind"] == "step"]
        after, total = [], 0.0
        for each in seconds[before:]:
            after.append(each)
            total += each
            if total > _AFTER_SECONDS:
                break
        return _is_counted_once(folder), max(after) - statistics.median(seconds[20:before])


def _is_counted_once(folder: Path) -> bool:
    once = LR / _BATCH
    samples = _STEPS * _BATCH
    weight = load_file(folder / "weights.safetensors")["weight"]
    store = LocalStore(folder / "checkpoints")
    checkpoint = Checkpoint(store, store.names()[-1])
    base = checkpoint.rows_base()
    rows: dict[int, float] = {}
    for each in (base, checkpoint) if base is not None else (checkpoint,):
        for _, ids, values, _ in read_rows(each, ["row"], range(SLOTS)):
            rows |= dict(zip(ids.tolist(), values[:, 0].tolist(), strict=True))
    first = initial_rows(0, "row", torch.arange(samples), 1, torch.float64)[:, 0]
    found = torch.tensor([rows[sample] for sample in range(samples)], dtype=torch.float64)
    return bool(torch.allclose(weight.double(), torch.full_like(weight.double(), -once))) and bool(
        torch.allclose(found, first - once)
    )


if __name__ == "__main__":
    main()
