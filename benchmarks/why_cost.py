"""One rank of a run whose steps are recorded in turns: eight with records, eight without. Used by why.py.

`torchrun --nproc-per-node 2 benchmarks/why_cost.py OUT BLOCKS`; rank 0 writes the seconds of every step to OUT.
"""

import json
import statistics
import sys
import tempfile
import time
from collections import deque
from pathlib import Path

from why_job import job

import onecurve as oc
from onecurve.device.step_clock import StepClock, step_clock
from onecurve.report.intervals import Intervals
from onecurve.report.sink import JsonLines, Sink, TraceFile
from onecurve.verbs.line_sampler import LineSampler
from onecurve.verbs.run_log import RunLog

_BLOCK = 8


def main() -> None:
    out, blocks = Path(sys.argv[1]), int(sys.argv[2])
    begin = StepClock.begin
    seconds: dict[bool, list[float]] = {True: [], False: []}
    trained = job(batch=64, width=768, steps=_BLOCK * blocks, workers=1)
    with tempfile.TemporaryDirectory() as folder, oc.prepare(trained, plan="replicate2 mb32") as run:
        records = JsonLines(Path(folder) / "records.jsonl")
        is_first = run.world.rank == 0
        sinks: list[Sink] = [records if is_first else Intervals(records)]
        traces = TraceFile(Path(folder) / "traces.jsonl")
        lines: LineSampler | None = None
        recorded: list[float] = []
        last = time.perf_counter()
        for batch in run:
            is_recorded = (batch.step - 1) // _BLOCK % 2 == 0
            if (batch.step - 1) % _BLOCK == 0:
                recorded = []
                step_clock.begin = begin.__get__(step_clock) if is_recorded else lambda *_: None  # type: ignore[method-assign]
                if lines is not None:
                    lines.stop()
                lines = LineSampler() if is_recorded and is_first else None
                log = RunLog(sinks, traces, deque(), None, lines)
            report = run.step(batch)
            if is_recorded:
                log.step(report)
            now = time.perf_counter()
            recorded.append(now - last)
            last = now
            if len(recorded) == _BLOCK:
                seconds[is_recorded].append(statistics.median(recorded))
        if run.world.rank == 0:
            out.write_text(json.dumps({"recorded": seconds[True], "bare": seconds[False]}))


if __name__ == "__main__":
    main()
