"""A run's history and the times of its steps, written by hand for tests of what is found in them."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from onecurve.describe.diagnosis import StepTimes
from onecurve.describe.record import StartRecord
from onecurve.diagnose.history import GenerationHistory, RankHistory, RunHistory, StepColumns

START = StartRecord(
    plan="replicate2 mb4",
    ranks=2,
    device="cpu",
    parameters=100,
    steps=100,
    host="h0",
    cores=2,
    threads=1,
    global_batch=8,
)


def step_times(own: Mapping[str, float], communication: Mapping[str, float] | None = None, **changes: Any) -> StepTimes:
    zero: dict[str, Any] = {"bubble": 0.0, "slowest": 0.0, "uneven": 0.0, "interrupted": 0.0, "pauses": {}}
    return StepTimes(own=own, communication=communication or {}, **{**zero, **changes})


def rank_history(
    rank: int, seconds: Mapping[str, float], steps: int = 10, host: str = "h0", **fields: Any
) -> RankHistory:
    """`seconds`: of each of the steps."""
    sums = {cause: steps * value for cause, value in seconds.items()}
    return RankHistory(rank, replace(START, host=host), steps=steps, seconds=sums, **fields)


def run_history(*ranks: RankHistory, steps: int = 10, device: str = "cpu", **fields: Any) -> RunHistory:
    columns = StepColumns()
    for step in range(1, steps + 1):
        columns.step.append(step)
        columns.seconds.append(0.1)
        columns.time.append(1000.0 + step)
    start = replace(START, device=device)
    return RunHistory("run", [GenerationHistory(start, steps=steps)], ranks=[*ranks], columns=columns, **fields)
