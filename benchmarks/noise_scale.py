"""Is the gradient noise scale where larger batches stop to save steps?

`python benchmarks/noise_scale.py --json` trains the examples gpt and resnet with a grid of batch sizes, each with
several learning rates, until they reach the same loss. The steps S that a batch of B needs are fitted by
S = S_min · (1 + knee / B). It prints, for each example, `knee`, `noise_scale` (what `onecurve why` says of a run with
the example's batch and the best learning rate that reaches this loss) and `ratio` of the two. The batches of resnet
begin with 32: with fewer samples, batch norm makes it another model.
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

from onecurve.describe.record import StepRecord
from onecurve.runs.records import read_records

JOB = Path(__file__).parent / "noise_job.py"
RATES = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0)
"""Learning rates that are tried, over lr · sqrt(batch / default batch)."""
EXAMPLES = {
    "gpt": {
        "lr": 3e-3,
        "batch": 32,
        "loss": 2.4,
        "steps": 240,
        "plan": "mb4×8",
        "batches": (4, 8, 16, 32, 64, 128),
    },
    "resnet": {
        "lr": 0.1,
        "batch": 64,
        "loss": 0.17,
        "steps": 100,
        "plan": "mb16×4",
        "batches": (32, 64, 128, 256, 512),
    },
}
CORES = sorted(os.sched_getaffinity(0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--only", choices=EXAMPLES, help="only this example")
    chosen = parser.parse_args()
    found = {}
    for example in [chosen.only] if chosen.only else EXAMPLES:
        with tempfile.TemporaryDirectory() as folder:
            found[example] = measure(example, Path(folder))
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


def measure(example: str, folder: Path) -> dict[str, object]:
    facts = EXAMPLES[example]
    steps, best_rates = {}, {}
    with ThreadPoolExecutor(len(CORES)) as pool:
        for batch in facts["batches"]:
            rates = [facts["lr"] * factor * math.sqrt(batch / facts["batch"]) for factor in RATES]
            most = max(80, 6 * facts["steps"] * facts["batch"] // batch)
            trained = [folder / f"{batch}-{rate:.4g}" for rate in rates]
            needed = pool.map(
                lambda rate, out: steps_until(facts["loss"], example, rate, batch, most, out, f"mb{batch}"),  # noqa: B023
                rates,
                trained,
            )
            tried = dict(zip(rates, needed, strict=True))
            rate = best_rates[batch] = min(tried, key=lambda rate: tried[rate])
            steps[batch] = tried[rate]
            say(f"  batch {batch}: {tried[rate]} steps at lr={rate:.3g}  ({[tried[rate] for rate in rates]})")
    out, batch = folder / "noise", facts["batch"]
    steps_until(facts["loss"], example, best_rates[batch], batch, 4 * facts["steps"], out, facts["plan"])
    why = [sys.executable, "-m", "onecurve", "why", str(out), "--json"]
    noise = json.loads(subprocess.run(why, check=True, capture_output=True, text=True).stdout)["noise_scale"]
    knee, least = fitted({batch: needed for batch, needed in steps.items() if math.isfinite(needed)})
    return {"noise_scale": noise, "knee": knee, "ratio": noise / knee, "least_steps": least, "steps": steps}


def steps_until(target: float, example: str, rate: float, batch: int, most: int, out: Path, plan: str) -> float:
    """Steps after which the smoothed loss reaches the target; infinity if it does not within `most`."""
    process = start(example, rate, batch, most, out, plan)
    while True:
        ended = process.poll() is not None
        reached = [step for step, loss in enumerate(smoothed(losses(out), batch), 1) if loss <= target]
        if reached:
            process.kill()
            process.wait()
            return reached[0]
        if ended:
            return math.inf
        time.sleep(1)


def start(example: str, rate: float, batch: int, steps: int, out: Path, plan: str) -> subprocess.Popen[bytes]:
    arguments = [f"example={example}", f"lr={rate}", f"batch={batch}", f"steps={steps}"]
    command = [sys.executable, "-m", "onecurve", "run", str(JOB), *arguments, "--plan", plan, "--no-check"]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, "--out", str(out), "--json"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def losses(run: Path) -> list[float]:
    try:
        return [record.loss for record in read_records(run) if isinstance(record, StepRecord)]
    except FileNotFoundError:
        return []


def smoothed(values: list[float], batch: int, samples: int = 256) -> list[float]:
    """The mean loss of the last 256 samples; infinity before there are as many."""
    window = max(1, samples // batch)
    return [math.inf if i < window else sum(values[i - window : i]) / window for i in range(1, len(values) + 1)]


def fitted(steps: dict[int, float]) -> tuple[float, float]:
    """The knee and the least steps, by least squares of log S."""

    def error(knee: float) -> tuple[float, float]:
        logs = [math.log(needed) - math.log(1 + knee / batch) for batch, needed in steps.items()]
        mean = sum(logs) / len(logs)
        return sum((value - mean) ** 2 for value in logs), math.exp(mean)

    knee = min((1.05**power for power in range(220)), key=lambda knee: error(knee)[0])
    return knee, error(knee)[1]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
