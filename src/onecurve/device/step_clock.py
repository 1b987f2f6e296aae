"""Measures where the seconds of a training step go, by cause.

Causes nest, and an inner cause takes its seconds from the outer one: a collective inside forward counts as
communication, not as forward. Every moment of a step has one cause, so the seconds add up to the step.

On a CPU the host computes, and every step is timed by its clock. An accelerator works behind the host, so it is timed
by events on its current stream, in a sample of the steps; the host does not wait for them. That has run on the
simulated accelerator of the tests, which has no real time, and not on a GPU.
"""

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType

import torch

from onecurve.device.device import Device

_SAMPLES_PER_DOUBLING = 8
"""Steps between step n and step 2n in which an accelerator is timed."""

Mark = tuple[str, float | torch.Event]
"""The end of a span: its cause, and when it was."""


@dataclass(frozen=True)
class Span:
    """A time in which a step had one cause. Times are seconds since the beginning of the step."""

    cause: str
    begin: float
    end: float


class StepClock:
    """The clock of the step that this process computes. It does nothing outside of timed steps."""

    def __init__(self) -> None:
        self._causes: list[str] = []
        self._device: Device | None = None
        self._marks: list[Mark] = []
        self._contexts: dict[str, _Cause] = {}

    def begin(self, device: Device, step: int) -> None:
        """Begin a step. `step`: its number, counted from 1, which decides whether an accelerator is timed."""
        self._causes, self._marks, self._device = [], [], device
        if not device.asynchronous or is_sampled(step):
            self._causes.append("other")
            self._mark("")

    def end(self) -> "StepMarks":
        """End the step; return when it had which cause."""
        if self._causes:
            self._mark(self._causes[-1])
        marks, self._causes, self._marks = self._marks, [], []
        return StepMarks(marks)

    def measure(self, cause: str) -> AbstractContextManager[None]:
        """A context whose time has this cause."""
        if torch.compiler.is_compiling():  # a compiled graph has no time of its own
            return nullcontext()
        if cause not in self._contexts:
            self._contexts[cause] = _Cause(self, cause)
        return self._contexts[cause]

    def change(self, cause: str) -> None:
        """Give the rest of the current context another cause."""
        if len(self._causes) > 1:
            self._mark(self._causes[-1])
            self._causes[-1] = cause

    def _enter(self, cause: str) -> None:
        if self._causes:
            self._mark(self._causes[-1])
            self._causes.append(cause)

    def _leave(self) -> None:
        if len(self._causes) > 1:
            self._mark(self._causes.pop())

    def _mark(self, cause: str) -> None:
        assert self._device is not None
        if not self._device.asynchronous:
            self._marks.append((cause, time.perf_counter()))
            return
        event = torch.Event(self._device.torch_device, enable_timing=True)
        event.record()
        self._marks.append((cause, event))


class _Cause(AbstractContextManager[None]):
    """A context that can be entered again and again, also inside itself."""

    def __init__(self, clock: StepClock, cause: str) -> None:
        self._clock, self._name = clock, cause

    def __enter__(self) -> None:
        self._clock._enter(self._name)

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self._clock._leave()


class StepMarks:
    """When a step had which cause. To read it from an accelerator waits until the step is done."""

    def __init__(self, marks: Sequence[Mark] = ()) -> None:
        self._marks = marks

    def __bool__(self) -> bool:
        """False if the step was not timed."""
        return len(self._marks) > 0

    @cached_property
    def spans(self) -> list[Span]:
        times = _seconds_since_first([when for _, when in self._marks])
        causes = [cause for cause, _ in self._marks[1:]]
        return [Span(*span) for span in zip(causes, times, times[1:], strict=False)]

    @property
    def seconds(self) -> dict[str, float]:
        """The seconds of each cause."""
        seconds: dict[str, float] = {}
        for span in self.spans:
            seconds[span.cause] = seconds.get(span.cause, 0.0) + span.end - span.begin
        return seconds


def _seconds_since_first(marks: Sequence[float | torch.Event]) -> list[float]:
    if not marks or isinstance(marks[0], float):
        return [mark - marks[0] for mark in marks]  # type: ignore[operator]
    marks[-1].synchronize()  # type: ignore[union-attr]
    return [marks[0].elapsed_time(mark) / 1e3 for mark in marks]  # type: ignore[arg-type]


def is_sampled(step: int) -> bool:
    """True for the steps in which an accelerator is timed: one of eight at first, and then ever fewer."""
    distance = _SAMPLES_PER_DOUBLING
    while 2 * _SAMPLES_PER_DOUBLING * distance <= step:
        distance *= 2
    return step % distance == 0


def is_traced(step: int) -> bool:
    """True for the steps whose spans are recorded: powers of two."""
    return step & (step - 1) == 0


step_clock = StepClock()
"""A process computes one step at a time."""
