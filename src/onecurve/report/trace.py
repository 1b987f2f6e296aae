"""Writes the traces of all ranks as one file that Perfetto and chrome://tracing show."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onecurve.describe.convert import to_json
from onecurve.describe.record import TraceRecord

_MICROSECONDS = 1e6


def write_trace(path: Path, steps: Mapping[int, Mapping[int, TraceRecord]], hosts: Mapping[int, str]) -> int:
    """Write the traces, by step and rank, in the trace event format; return the number of spans.

    `hosts`: name of each rank's host. A host is shown as a process, a rank as a thread.
    """
    names = sorted(set(hosts.values()))
    processes = {name: number for number, name in enumerate(names)}
    count = 0
    with path.open("w", encoding="utf-8") as file:
        file.write('{"displayTimeUnit":"ms","traceEvents":[\n')
        events = [_named("process_name", number, 0, f"host {name}") for name, number in processes.items()]
        events += [_named("thread_name", processes[host], rank, f"rank {rank}") for rank, host in hosts.items()]
        file.write(",\n".join(map(to_json, events)))
        begin = min((trace.begin for traces in steps.values() for trace in traces.values()), default=0.0)
        for step, traces in steps.items():
            for rank, trace in traces.items():
                where = {"pid": processes[hosts[rank]], "tid": rank}
                for event in _spans(step, trace, trace.begin - begin):
                    file.write(",\n" + to_json({**event, **where}))
                    count += 1
        file.write("\n]}\n")
    return count


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"name": kind, "ph": "M", "pid": process, "tid": thread, "args": {"name": name}}


def _spans(step: int, trace: TraceRecord, begin: float) -> list[dict[str, Any]]:
    last = trace.spans[-1][2] if trace.spans else 0.0
    events = [_event(f"step {step}", begin, last)]
    return events + [_event(cause, begin + start, end - start) for cause, start, end in trace.spans]


def _event(name: str, begin: float, seconds: float) -> dict[str, Any]:
    return {"name": name, "ph": "X", "ts": round(begin * _MICROSECONDS, 1), "dur": round(seconds * _MICROSECONDS, 1)}
