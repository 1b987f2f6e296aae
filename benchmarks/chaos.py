"""Faults in a running training, replayed from a seed: does it go on, how soon, and does it compute the same?

`python benchmarks/chaos.py SCENARIO --seed 1 --count 10 --json`

Scenarios:
- `kill`: a rank is killed at a random moment, under replicate, shard, tensor, pipeline and mixed plans in turn.
- `stop`: a rank is stopped by SIGSTOP. `named` counts the runs in which it is named with its host and a line of code,
  `max_named_s` is the longest time until then.
- `generations`: one run loses its last rank COUNT times, at least ten. `same_resources`: the other one has as many open
  files and threads after the last four as after the third to sixth. `memory_ratio`: its resident memory at the end over
  that after the sixth.
- `storm`: 2 ranks train for `--minutes`, and one is killed every `--every` seconds. `effective_time`: seconds of the
  steps that count over the time since the first step.

`exact` counts the runs whose weights are bit-equal to those of an uninterrupted run under the same plan, and in which
every step counts once. `median_recovery_s` is the time from the fault to the end of the next step, `start_s` the time
from the start of the command to the end of the first step, `lost_steps` the most steps that were done again, and
`interval` the most steps between two snapshots.
"""

import argparse
import json
import os
import random
import re
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from watched_run import WatchedRun

_GPT = Path(__file__).parent.parent / "examples" / "gpt.py"
_STEPS = 120
_JOB = ("batch=8", "width=64")
_SAMPLES = 4
_PLANS = ("replicate2 mb4", "shard2 mb4", "tensor2 mb8", "pipeline2 mb2×4", "replicate2·pipeline2 mb2×2")


@dataclass
class Found:
    """What a scenario has shown."""

    scenario: str
    runs: int = 0
    finished: int = 0
    exact: int = 0
    recoveries: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    lost_steps: int = 0
    interval: int = 0
    more: dict[str, Any] = field(default_factory=dict)
    """What only this scenario measures."""

    def as_json(self) -> dict[str, Any]:
        plain = asdict(self)
        recoveries, starts, more = plain.pop("recoveries"), plain.pop("starts"), plain.pop("more")
        return {
            **plain,
            "median_recovery_s": statistics.median(recoveries) if recoveries else None,
            "max_recovery_s": max(recoveries, default=None),
            "start_s": statistics.median(starts) if starts else None,
            **more,
        }


class Lab:
    """A folder with uninterrupted runs to compare with, one per plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._weights: dict[str, bytes] = {}

    def start(self, plan: str, steps: int = _STEPS) -> WatchedRun:
        self._count += 1
        options = (*_JOB, f"steps={steps}", "--no-check", "--plan", plan)
        return WatchedRun(_GPT, self._folder / f"run-{self._count}", *options)

    def weights(self, plan: str) -> bytes:
        """The weights of an uninterrupted run."""
        if plan not in self._weights:
            with self.start(plan) as run:
                if run.end() != 0:
                    raise SystemExit(f"the uninterrupted run under {plan} has failed:\n{run.output()}")
                self._weights[plan] = (run.folder / "weights.safetensors").read_bytes()
        return self._weights[plan]


def kill(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    for number in range(chosen.count):
        plan = _PLANS[number % len(_PLANS)]
        expected = lab.weights(plan)
        with lab.start(plan) as run:
            at = draw.randrange(2, _STEPS - 10)
            started, recovered = _signal_one(run, draw, at, signal.SIGKILL)
            status = run.end()
            judge(run, found, expected, status)
            found.starts.append(started)
            found.recoveries += [recovered] if recovered is not None else []
            took = "lost" if recovered is None else f"{recovered:.2f} s"
            say(f"{number + 1}/{chosen.count} {plan}: step {at}, status {status}, {took} {causes(run)}")
            if status != 0:
                say(run.output())


def _signal_one(run: WatchedRun, draw: random.Random, at: int, number: int) -> tuple[float, float | None]:
    """Send a signal to a rank at a step; return the seconds of the start, and those until the next step is done."""
    first = run.wait_for_step(1, 1)
    if first is None or run.wait_for_step(1, at) is None:
        raise SystemExit(f"the run has ended too soon\n{run.output()}")
    os.kill(draw.choice(run.ranks()), number)
    killed = time.time()
    after = run.wait_for_step(2, 1)
    return first - run.started, None if after is None else after - killed


def stop(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    found.more = {"named": 0, "max_named_s": 0.0}
    for number in range(chosen.count):
        plan = _PLANS[number % len(_PLANS)]
        expected = lab.weights(plan)
        with lab.start(plan) as run:
            started, recovered = _signal_one(run, draw, draw.randrange(40, _STEPS - 40), signal.SIGSTOP)
            judge(run, found, expected, run.end())
            found.starts.append(started)
            record = next((record for record in run.records() if record.get("why", "start") != "start"), None)
            if record is None or recovered is None:
                say(f"{number + 1}/{chosen.count} {plan}: {run.output()}")
                continue
            found.recoveries.append(recovered)
            found.more["named"] += bool(re.search(r"lost rank \d+ on \S+ \(stopped for .* s, in .+:\d+", record["why"]))
            named = recovered - sum(record["seconds"].values())
            found.more["max_named_s"] = max(found.more["max_named_s"], named)
            say(f"{number + 1}/{chosen.count} {plan}: {record['why']}, named after {named:.1f} s, {recovered:.1f} s")


def generations(lab: Lab, found: Found, _: random.Random, chosen: argparse.Namespace) -> None:
    with lab.start("shard2 mb4", steps=1_000_000) as run:
        run.wait_for_step(1, 2)
        survivor, victim = run.ranks()[:2]
        resources: list[tuple[int, int, int]] = []
        for generation in range(1, chosen.count + 1):
            os.kill(victim, signal.SIGKILL)
            killed = time.time()
            after = run.wait_for_step(generation + 1, 1)
            if after is None:
                raise SystemExit(f"generation {generation + 1} has not begun\n{run.output()}")
            found.recoveries.append(after - killed)
            # Three failures at the same step would end the run.
            run.wait_for_step(generation + 1, max(run.steps(generation)) + 2)
            resources.append(resources_of(survivor))
            (victim,) = (pid for pid in run.ranks() if pid != survivor)
            say(f"{generation}/{chosen.count}: {after - killed:.2f} s, {resources[-1]}")
        run.process.send_signal(signal.SIGTERM)
        found.runs, found.finished = 1, int(run.end() == 75)
    first, last = resources[2 : 2 + _SAMPLES], resources[-_SAMPLES:]
    # Batches on their way from the loader take descriptors too, so the least of several counts.
    found.more["same_resources"] = [min(column) for column in zip(*first, strict=True)][:2] == [
        min(column) for column in zip(*last, strict=True)
    ][:2]
    found.more["memory_ratio"] = last[-1][2] / first[-1][2]


def resources_of(pid: int) -> tuple[int, int, int]:
    """Open files, threads, and resident memory in bytes."""
    process = Path(f"/proc/{pid}")
    files, threads = (len(list((process / name).iterdir())) for name in ("fd", "task"))
    return files, threads, int((process / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def storm(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    with lab.start("replicate2 mb4", steps=10_000_000) as run:
        begin = run.wait_for_step(1, 1)
        assert begin is not None, run.output()
        end, generation = begin + 60 * chosen.minutes, 1
        while time.time() + chosen.every < end:
            time.sleep(chosen.every)
            os.kill(draw.choice(run.ranks()), signal.SIGKILL)
            killed = time.time()
            generation += 1
            after = run.wait_for_step(generation, 1)
            if after is None:
                raise SystemExit(f"generation {generation} has not begun\n{run.output()}")
            found.recoveries.append(after - killed)
            say(f"{after - begin:.0f} s: {after - killed:.2f} s {causes(run, generation)}")
        time.sleep(max(0.0, end - time.time()))
        steps = {record["step"]: record for record in run.records() if record["kind"] == "step"}
        wall = time.time() - begin
        run.process.send_signal(signal.SIGTERM)
        found.runs, found.finished = 1, int(run.end() == 75)
        counted = sum(sum(record["seconds"].values()) for step, record in steps.items() if step > 1)
        found.more["effective_time"] = counted / wall


def causes(run: WatchedRun, generation: int = 2) -> str:
    """Where the time of the recovery went."""
    found = [record for record in run.records() if record["kind"] == "generation"]
    found = [record for record in found if record["generation"] == generation]
    if not found:
        return ""
    seconds = {name: round(value, 2) for name, value in found[0]["seconds"].items()}
    return f"{found[0]['lost_steps']} steps lost {json.dumps(seconds)}"


def judge(run: WatchedRun, found: Found, expected: bytes, status: int | None) -> None:
    """Count how a run has ended."""
    found.runs += 1
    if status != 0:
        return
    found.finished += 1
    generations = [record for record in run.records() if record["kind"] == "generation"]
    intervals = [int(record["text"].split()[1]) for record in run.records() if record.get("event") == "snapshots"]
    found.interval = max([found.interval, *intervals])
    found.lost_steps = max([found.lost_steps, *(record["lost_steps"] for record in generations)])
    weights = (run.folder / "weights.safetensors").read_bytes()
    found.exact += weights == expected and counted_once(run)


def counted_once(run: WatchedRun) -> bool:
    """True if the steps that count, those of the latest generation that has done them, are all steps in order."""
    generation_of: dict[int, int] = {}
    for record in run.records():
        if record["kind"] == "step":
            generation_of[record["step"]] = record["generation"]
    numbers = [generation_of[step] for step in sorted(generation_of)]
    return sorted(generation_of) == list(range(1, _STEPS + 1)) and numbers == sorted(numbers)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_SCENARIOS: dict[str, Callable[[Lab, Found, random.Random, argparse.Namespace], None]] = {
    "kill": kill,
    "stop": stop,
    "generations": generations,
    "storm": storm,
}


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=_SCENARIOS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--every", type=float, default=60.0, help="seconds between two faults of a storm")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(words)
    found = Found(chosen.scenario)
    with tempfile.TemporaryDirectory() as folder:
        _SCENARIOS[chosen.scenario](Lab(Path(folder)), found, random.Random(chosen.seed), chosen)
    print(json.dumps(found.as_json()) if chosen.json else found.as_json())


if __name__ == "__main__":
    main()
