"""Does `onecurve tune` find what a grid finds, with fewer training steps, also if it is killed?

`python benchmarks/tune.py --json` prints `grid_loss` (the best of 16 learning rates for the GPT example), `loss` (what
tune has found with 16 trials), `excess` (by how much that is larger), `step_fraction` (training steps of tune over
those of the grid), `trials` (counted after two kills and a resumption by two processes at once) and `repeated` (trials
with the same arguments).
"""

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parent.parent / "examples" / "gpt.py"
LOW, HIGH, POINTS, STEPS = 1e-4, 3e-2, 16, 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--grid", metavar="FILE", help="keep the losses of the grid here, and read them if they exist")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        grid = grid_losses(Path(folder), Path(chosen.grid) if chosen.grid else None)
        tuned = tune(Path(folder) / "study")
    best = tuned["trials"][0]["value"]
    arguments = [json.dumps(trial["arguments"], sort_keys=True) for trial in tuned["trials"]]
    found = {
        "grid_loss": min(grid.values()),
        "grid_lr": min(grid, key=lambda rate: grid[rate]),
        "loss": best,
        "lr": tuned["trials"][0]["arguments"]["lr"],
        "excess": round(best / min(grid.values()) - 1, 4),
        "step_fraction": round(tuned["steps"] / (POINTS * STEPS), 4),
        "trials": len(tuned["trials"]),
        "repeated": len(arguments) - len(set(arguments)),
    }
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


def grid_losses(folder: Path, kept: Path | None) -> dict[str, float]:
    """The loss after training with each learning rate of the grid."""
    if kept is not None and kept.exists():
        return json.loads(kept.read_text())
    cores = sorted(os.sched_getaffinity(0))

    def train(point: int) -> tuple[str, float]:
        rate = f"{LOW * (HIGH / LOW) ** (point / (POINTS - 1)):.4g}"
        out = folder / f"grid-{point}"
        command = [*onecurve("run", EXAMPLE, f"lr={rate}", f"steps={STEPS}"), "--ranks", "1", "--out", str(out)]
        subprocess.run(["taskset", "-c", str(cores[point % len(cores)]), *command], check=True, capture_output=True)
        loss = json.loads((out / "summary.json").read_text())["evaluation"]["loss"]
        say(f"lr={rate}: {loss:.4f}")
        return rate, loss

    with ThreadPoolExecutor(len(cores)) as pool:
        losses = dict(pool.map(train, range(POINTS)))
    if kept is not None:
        kept.write_text(json.dumps(losses))
    return losses


def tune(out: Path) -> dict[str, Any]:
    """Search with two kills, and then with two processes at once."""
    arguments = [f"lr={LOW}..{HIGH}", f"steps={STEPS}", "--trials", str(POINTS), "--out", str(out), "--json"]
    command = [*onecurve("tune", EXAMPLE), *arguments]
    for seconds in (25, 35):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        time.sleep(seconds)
        process.kill()
        process.wait()
        say(f"killed after {seconds} s")
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    results = [json.loads(process.communicate()[0]) for process in processes]
    result = max(results, key=lambda each: sum(trial["outcome"] != "running" for trial in each["trials"]))
    for trial in result["trials"]:
        loss = "" if trial["value"] is None or not math.isfinite(trial["value"]) else f"{trial['value']:.4f}"
        say(f"trial {trial['number']}: lr={trial['arguments']['lr']} {trial['outcome']} {trial['steps']} {loss}")
    return result


def onecurve(*words: object) -> list[str]:
    return [sys.executable, "-m", "onecurve", *map(str, words)]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
