"""Writes the records of a run that never was: any number of ranks and steps, with the times that one asks for."""

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from onecurve.describe.record import EndRecord, MemoryRecord, StartRecord, StepRecord, TraceRecord
from onecurve.report.intervals import Intervals
from onecurve.report.sink import JsonLines, Sink, TraceFile
from onecurve.runs.folder import records_file, traces_file

Times = Callable[[int, int], Mapping[str, float]]
"""(rank, step) → seconds by cause."""

STEP = StepRecord(
    step=1,
    loss=1.0,
    count=8.0,
    gradient_norm=1.0,
    lr=0.1,
    loss_scale=1.0,
    samples=8,
    skipped=False,
    seconds={},
    memory=1 << 30,
    loader_processes=1,
)


def steady(rank: int, step: int) -> Mapping[str, float]:
    """A run that is good: nearly all of its time is computing."""
    noise = random.Random(1_000_003 * rank + step).uniform(0.0, 0.002)
    return {"data": 0.001, "forward": 0.03 + noise, "backward": 0.06, "update": 0.004, "replicate": 0.004 - noise}


def write_run(
    folder: Path,
    ranks: int = 2,
    steps: int = 60,
    times: Times = steady,
    plan: str = "replicate2 mb4",
    ends: bool = True,
    **fields: object,
) -> Path:
    """Write a run; `fields`: of every StepRecord, numbers or functions of (rank, step)."""
    for rank in range(ranks):
        _write_rank(folder, rank, ranks, steps, times, plan, ends, fields)
    return folder


def _write_rank(
    folder: Path, rank: int, ranks: int, steps: int, times: Times, plan: str, ends: bool, fields: Mapping[str, object]
) -> None:
    lines = JsonLines(records_file(folder, rank))
    sink: Sink = lines if rank == 0 else Intervals(lines, clock=lambda: 0.0)
    begin = {"launch": 2.0, "build": 1.0}
    clock = 1_000_000.0
    start = StartRecord(
        plan=plan, ranks=ranks, device="cpu", parameters=100, steps=steps, host=f"h{rank // 8}", cores=1, threads=1,
        host_cores=8, global_batch=8, seconds=begin, time=clock,
    )  # fmt: skip
    sink.write(start)
    for step in range(1, steps + 1):
        seconds = dict(times(rank, step))
        clock += sum(seconds.values())
        own = {name: value(rank, step) if callable(value) else value for name, value in fields.items()}
        record = replace(STEP, step=step, loss=10 / (step + 9), seconds=seconds, time=clock, samples=8 * step, **own)
        sink.write(record)
        if step == 1:
            sink.write(MemoryRecord({"weights": 600, "activations": 400}, 1000, time=clock))
    if ends:
        sink.write(EndRecord({"checkpoint": 0.5}, time=clock + 0.5))
    sink.close()
    traces = TraceFile(traces_file(folder, rank))
    offset = 5.0 * rank  # the clocks of the hosts differ
    traces.write(TraceRecord(1, clock + offset, (("forward", 0.0, 0.1), ("sync", 0.1, 0.2)), 0.2))
    traces.close()
