"""Combines the steps of a rank into intervals, so that its file of records stays small however long the run is."""

import statistics
import time
from collections.abc import Callable

from onecurve.describe.record import FIRST_STEPS, IntervalRecord, Record, StartRecord, StepRecord, own_seconds
from onecurve.report.sink import Sink

_INTERVALS_PER_DOUBLING = 32
"""Intervals between step n and step 2n."""
_MAX_SECONDS = 60.0
"""An interval ends after this time even if it has few steps."""


class Intervals:
    """A sink that writes one record per interval of steps to another sink, and other records as they are.

    All ranks of a run have the same intervals, unless steps take very long.
    """

    def __init__(self, sink: Sink, clock: Callable[[], float] = time.monotonic) -> None:
        self._sink, self._clock = sink, clock
        self._steps: list[StepRecord] = []
        self._since = 0.0
        self._first_steps = 0
        """Steps that get a record each, because they are slower than others."""

    def write(self, record: Record) -> None:
        if not isinstance(record, StepRecord):
            if isinstance(record, StartRecord):
                self._flush()
                self._first_steps = FIRST_STEPS
            self._sink.write(record)
            return
        if not self._steps:
            self._since = self._clock()
        self._steps.append(record)
        self._first_steps -= 1
        is_last = record.step % interval_length(record.step) == 0 or self._first_steps >= 0
        if is_last or self._clock() - self._since >= _MAX_SECONDS:
            self._flush()

    def close(self) -> None:
        self._flush()
        self._sink.close()

    def _flush(self) -> None:
        if self._steps:
            self._sink.write(interval_of(self._steps))
            self._steps = []


def interval_of(steps: list[StepRecord]) -> IntervalRecord:
    """The record of consecutive steps of one generation."""
    seconds: dict[str, float] = {}
    for step in steps:
        for cause, value in step.seconds.items():
            seconds[cause] = seconds.get(cause, 0.0) + value
    last = steps[-1]
    return IntervalRecord(
        step=last.step,
        steps=len(steps),
        seconds=seconds,
        deviation=statistics.pstdev([own_seconds(step.seconds) for step in steps]),
        loss=last.loss,
        loss_scale=last.loss_scale,
        skipped=sum(step.skipped for step in steps),
        memory=last.memory,
        skipped_samples=sum(step.skipped_samples for step in steps),
        loader_processes=last.loader_processes,
        loading_seconds=sum(step.loading_seconds for step in steps),
        loading_cpu_seconds=sum(step.loading_cpu_seconds for step in steps),
        storage_seconds=sum(step.storage_seconds for step in steps),
        saving_cpu_seconds=sum(step.saving_cpu_seconds for step in steps),
        cpu_seconds=sum(step.cpu_seconds for step in steps),
        generation=last.generation,
        time=last.time,
    )


def interval_length(step: int) -> int:
    """Steps of the interval that this step is in: a power of two, about 3 % of the steps so far."""
    length = 1
    while 2 * _INTERVALS_PER_DOUBLING * length <= step:
        length *= 2
    return length
