"""What a run records while it trains: steps, events, generations, and the summary of its progress."""

import math
import os
import socket
import statistics
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from onecurve.checkpoint.saver import SaveEvent
from onecurve.describe.errors import OnecurveError
from onecurve.describe.estimate import PredictedStep
from onecurve.describe.generation import Generation
from onecurve.describe.record import (
    EndRecord,
    EvaluationRecord,
    EventRecord,
    GenerationRecord,
    MemoryRecord,
    Record,
    StartRecord,
    StepRecord,
)
from onecurve.describe.summary import Ending, RunSummary
from onecurve.device.step_clock import is_traced
from onecurve.report.sink import Sink, TraceFile
from onecurve.runtime.run import Run
from onecurve.train.step_report import StepReport
from onecurve.verbs.line_sampler import LineSampler

_MAX_SKIPPED_STEPS = 50
"""Consecutive steps that were not finite; loss scaling needs fewer to find its scale."""
_RECENT_STEPS = 1000


@dataclass
class LoopProgress:
    """What the loop has done so far."""

    steps: int = 0
    """Steps done, those before a resume included."""
    loss: float = math.nan
    evaluation: EvaluationRecord | None = None
    test: EvaluationRecord | None = None
    training_seconds: float = 0.0
    consecutive_skips: int = 0
    own_steps: int = 0
    """Steps of this process."""
    recent_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT_STEPS))
    """Seconds of the latest steps, without evaluations and checkpoints."""

    def add(self, record: StepRecord) -> None:
        self.steps, self.loss = record.step, record.loss
        self.consecutive_skips = self.consecutive_skips + 1 if record.skipped else 0
        if self.consecutive_skips == _MAX_SKIPPED_STEPS:
            raise OnecurveError(
                f"the loss or a gradient was not finite in {_MAX_SKIPPED_STEPS} consecutive steps, up to step "
                f"{self.steps}; try a smaller learning rate or clip=1.0, and look for bad values in the data"
            )
        self.own_steps += 1
        seconds = sum(record.seconds.values()) - record.seconds["evaluation"]
        self.training_seconds += seconds
        self.recent_seconds.append(seconds - record.seconds["checkpoint"] - record.seconds.get("audit", 0.0))

    def summary(
        self,
        run: Run,
        out: Path,
        ended: Ending,
        best_weights: str | None,
        seconds: float,
        predicted: PredictedStep,
        first_step: int,
    ) -> RunSummary:
        return RunSummary(
            out=str(out),
            plan=str(run.plan),
            ranks=run.world.size,
            steps=self.steps,
            steps_planned=run.steps,
            ended=ended,
            loss=self.loss,
            evaluation=self.evaluation,
            test=self.test,
            best=run.best.best if run.best is not None else None,
            best_weights=best_weights,
            seconds=seconds,
            samples_per_second=self.own_steps * run.job.global_batch / max(self.training_seconds, 1e-9),
            step_seconds=statistics.median(self.recent_seconds) if self.recent_seconds else 0.0,
            predicted_step_seconds=predicted.total or None,
            first_step=first_step,
        )


class RunLog:
    """Writes records, and events of saves as they come in, to all sinks."""

    def __init__(
        self,
        sinks: Sequence[Sink],
        traces: TraceFile,
        events: deque[SaveEvent],
        generation: Generation | None,
        lines: LineSampler | None,
    ) -> None:
        """`lines`: looks where this rank is in the user's code; None on ranks that do not record that."""
        self._sinks, self._traces, self._events, self._generation = sinks, traces, events, generation
        self._lines = lines
        self._number = generation.trained_number if generation is not None else 1
        self._predicted = generation.predicted if generation is not None else PredictedStep()

    def start(self, run: Run, proof: EventRecord | None, seconds: dict[str, float]) -> None:
        """`seconds`: since the start of the command, by cause."""
        self.write(
            StartRecord(
                plan=str(run.plan),
                ranks=run.world.size,
                device=run.device.kind,
                parameters=run.parameters,
                steps=run.steps,
                predicted=self._predicted.seconds,
                peak_seconds=self._predicted.peak_seconds,
                host=socket.gethostname(),
                host_cores=run.components.host_cores,
                cores=len(os.sched_getaffinity(0)),
                threads=torch.get_num_threads(),
                global_batch=run.job.global_batch,
                epoch_samples=run.components.epoch_samples,
                seconds=seconds if self._number == 1 else {},
            )
        )
        if self._number == 1:
            if proof is not None:
                self.write(proof)
            if run.warning:
                self.write(EventRecord("warning", run.warning))
        if run.plan.compile:
            self.write(EventRecord("compiling", "the blocks of the model, during the first step"))
        if run.resumed:
            self.write(EventRecord("resumed", run.resumed))
        if run.changed:
            self.write(EventRecord("changed", run.changed))

    def first_step(self, run: Run, seconds: float) -> None:
        """Record how this generation began. `seconds`: of its first step."""
        components, peak = run.memory()
        self.write(MemoryRecord(components, peak))
        if self._generation is None or run.world.rank > 0:
            return
        interruption = self._generation.interruption
        by_cause = {**run.start_seconds, "step": seconds}
        if interruption is not None:
            by_cause = {**interruption.seconds, **by_cause}
            # New processes had to be started before they could build.
            by_cause["build"] += time.time() - interruption.time - sum(by_cause.values())
        self.write(
            GenerationRecord(
                generation=self._number,
                hosts=self._generation.hosts,
                ranks=self._generation.size,
                plan=str(run.plan),
                why=interruption.why if interruption is not None else "start",
                from_step=run.first_step,
                lost_steps=max(0, interruption.step - run.first_step) if interruption is not None else 0,
                seconds=by_cause,
            )
        )

    def step(self, report: StepReport) -> StepRecord:
        record = report.record(self._number)
        self.write(record)
        if report.marks and is_traced(report.step):
            self._traces.write(replace(report.trace(), generation=self._number))
        if self._lines is not None and self._lines.is_due:
            self.write(self._lines.record())
        return record

    def end(self, seconds: dict[str, float]) -> None:
        """`seconds`: since the last step, by cause."""
        if self._lines is not None:
            self.write(self._lines.record())
        self.write(EndRecord(seconds))

    def write(self, record: Record) -> None:
        if record.generation != self._number or not record.time:
            record = replace(record, generation=self._number, time=record.time or time.time())
        for sink in self._sinks:
            sink.write(record)

    def write_events(self) -> None:
        while self._events:
            event = self._events.popleft()
            self.write(EventRecord(event.event, event.text))

    def close(self) -> None:
        if self._lines is not None:
            self._lines.stop()
        for sink in self._sinks:
            sink.close()
        self._traces.close()
