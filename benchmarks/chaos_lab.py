"""What the scenarios of chaos.py have in common: a folder with runs, what they have shown, and how they are judged."""

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from watched_run import Record, Records, WatchedRun

JOB_FILE = Path(__file__).parent / "chaos_job.py"
STEPS = 120
JOB = ("batch=8", "width=64")
TOLERANCE = 1e-9
"""Of weights in float64 that another plan has trained."""
PLANS = ("replicate3 mb(3,3,2)", "shard3 mb(3,3,2)", "tensor2 mb8", "pipeline2 mb2×4", "replicate2·pipeline2 mb2×2")


@dataclass
class Found:
    """What a scenario has shown. None: it does not measure that."""

    scenario: str
    runs: int = 0
    finished: int = 0
    exact: int | None = None
    recoveries: list[float] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    lost_steps: int | None = None
    interval: int | None = None
    effective_time: float | None = None
    named: int | None = None
    false_alarms: int | None = None
    both_committed: int | None = None
    step_ratio: float | None = None
    memory_ratio: float | None = None
    more: dict[str, Any] = field(default_factory=dict)
    """What is not in every scenario's output."""

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

    def judge(self, records: Records, is_exact: bool, steps: int) -> None:
        """Count a run that has finished. `is_exact`: its weights are as they should be. `steps`: that it must have."""
        self.finished += 1
        self.exact = (self.exact or 0) + (is_exact and counted_once(records.all(), steps))
        generations = [record for record in records.all() if record["kind"] == "generation"]
        self.interval = max([self.interval or 0, *records.intervals()])
        self.lost_steps = max([self.lost_steps or 0, *(record["lost_steps"] for record in generations)])


class Lab:
    """A folder with uninterrupted runs to compare with, one per plan."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._count = 0
        self._weights: dict[str, bytes] = {}

    def start(self, plan: str, steps: int = STEPS, *arguments: str, **how: Any) -> WatchedRun:
        """Start a run. `how`: see `WatchedRun`."""
        options = (*(arguments or JOB), f"steps={steps}", "--no-check", "--plan", plan)
        return WatchedRun(JOB_FILE, self.new_folder(), *options, **how)

    def new_folder(self) -> Path:
        self._count += 1
        folder = self._folder / f"run-{self._count}"
        folder.mkdir()
        return folder

    def run_alone(self, plan: str, *arguments: str, **how: Any) -> Path:
        """Train without a fault; return the run's folder."""
        with WatchedRun(JOB_FILE, self.new_folder(), *arguments, "--no-check", "--plan", plan, **how) as run:
            if run.end() != 0:
                raise SystemExit(f"the uninterrupted run under {plan} has failed:\n{run.output()}")
            return run.folder

    def weights(self, plan: str) -> bytes:
        """The weights of an uninterrupted run."""
        if plan not in self._weights:
            folder = self.run_alone(plan, *JOB, f"steps={STEPS}")
            self._weights[plan] = (folder / "weights.safetensors").read_bytes()
        return self._weights[plan]


def causes(run: WatchedRun, generation: int = 2) -> str:
    """Where the time of the recovery went."""
    found = [record for record in run.records.all() if record["kind"] == "generation"]
    found = [record for record in found if record["generation"] == generation]
    if not found:
        return ""
    seconds = {name: round(value, 2) for name, value in found[0]["seconds"].items()}
    return f"{found[0]['lost_steps']} steps lost {json.dumps(seconds)}"


def judge(run: WatchedRun, found: Found, expected: bytes, status: int | None) -> None:
    """Count how a run has ended, whose weights must be these."""
    found.runs += 1
    if status == 0:
        found.judge(run.records, (run.folder / "weights.safetensors").read_bytes() == expected, STEPS)


def difference(run: Path, expected: Mapping[str, np.ndarray]) -> float:
    """The largest difference between the weights of a run and the expected ones."""
    weights = load_file(run / "weights.safetensors")
    return max(float(abs(weights[name] - value).max()) for name, value in expected.items())


def counted_once(records: Sequence[Record], steps: int) -> bool:
    """True if the steps that count, those of the latest generation that has done them, are all steps in order."""
    generation_of: dict[int, int] = {}
    for record in records:
        if record["kind"] == "step":
            generation_of[record["step"]] = record["generation"]
    numbers = [generation_of[step] for step in sorted(generation_of)]
    return sorted(generation_of) == list(range(1, steps + 1)) and numbers == sorted(numbers)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
