"""Reads the spans of steps back, with the clocks of all ranks aligned."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from onecurve.describe.record import TraceRecord
from onecurve.runs.folder import traces_file

_DECODER = msgspec.json.Decoder(TraceRecord)


def read_traces(folder: Path, rank: int) -> Iterator[TraceRecord]:
    """Yield the traces of one rank. A line that is not complete, because its host failed, is left out."""
    path = traces_file(folder, rank)
    if not path.is_file():
        return
    with path.open("rb") as file:
        for line in file:
            with suppress(msgspec.DecodeError):
                yield _DECODER.decode(line)


def aligned_traces(folder: Path, ranks: Sequence[int]) -> dict[int, dict[int, TraceRecord]]:
    """Return the traces of some ranks, by step and rank. A step that was done again counts once.

    All ranks end the exchange of a step's sums at the same moment. Each trace is moved so that this moment is that of
    the first rank: clocks of different hosts then agree, however wrong they are.
    """
    steps: dict[int, dict[int, TraceRecord]] = {}
    for rank in ranks:
        for trace in read_traces(folder, rank):
            steps.setdefault(trace.step, {})[rank] = trace
    return {step: _aligned(traces) for step, traces in sorted(steps.items())}


def _aligned(traces: dict[int, TraceRecord]) -> dict[int, TraceRecord]:
    first = next(iter(traces.values()))
    newest = max(trace.generation for trace in traces.values())
    moment = first.begin + first.end
    return {
        rank: replace(trace, begin=moment - trace.end) for rank, trace in traces.items() if trace.generation == newest
    }
