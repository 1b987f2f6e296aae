"""One rank of `onecurve run`: the loop, its records, and what is left in the run's folder."""

import json
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from onecurve.checkpoint.hugging_face import keep_configuration
from onecurve.describe.convert import from_json, from_plain, to_json, to_plain, to_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.record import EvaluationRecord, EventRecord, Record, StartRecord, StepRecord
from onecurve.describe.requests import RunRequest
from onecurve.describe.summary import BestEvaluation, RunSummary
from onecurve.device.collectives import barrier
from onecurve.device.files import replace_file
from onecurve.device.world import World
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.report.progress import Terminal
from onecurve.report.sink import JsonLines, Sink
from onecurve.report.tensorboard import TensorBoard
from onecurve.runs.folder import (
    CONFIGURATION,
    ORIGIN,
    PLAN,
    RECORDS,
    SUMMARY,
    TENSORBOARD,
    WEIGHTS,
    Origin,
    RunLock,
    clear_previous_run,
    refuse_foreign_folder,
)
from onecurve.runtime.checkpoints import claim_for
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.train.step_report import StepReport
from onecurve.verbs.prepare import Run

_HOPELESS = 50  # a loss scale has long been found by then
_RECENT = 1000


@dataclass
class Tally:
    """What the loop has done so far."""

    steps: int = 0
    loss: float = math.nan
    evaluation: EvaluationRecord | None = None
    training_seconds: float = 0.0
    skipped_in_a_row: int = 0
    own_steps: int = 0
    """Not counting those of the lives before."""
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    """Seconds of the last steps."""

    def add(self, record: StepRecord) -> None:
        self.steps, self.loss = record.step + 1, record.loss
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if record.skipped else 0
        if self.skipped_in_a_row == _HOPELESS:
            raise OnecurveError(
                f"the loss or a gradient was not finite {_HOPELESS} steps in a row, up to step {self.steps}; try a "
                "smaller learning rate or clip=1.0, and look for bad values in the data"
            )
        self.own_steps += 1
        self.training_seconds += sum(record.seconds.values()) - record.seconds["evaluation"]
        self.recent.append(sum(record.seconds.values()) - record.seconds["evaluation"] - record.seconds["checkpoint"])


def run_as_rank(request: str, stop: Callable[[], bool]) -> None:
    asked = from_plain(RunRequest, json.loads(request), "request")
    summary = train(asked, stop)
    if summary is not None:
        Path(asked.result).write_text(json.dumps(to_plain(summary)))  # JSON proper has no word for NaN


def train(request: RunRequest, stop: Callable[[], bool]) -> RunSummary | None:
    """One rank's whole run; the summary on rank 0."""
    begin = time.perf_counter()
    job = load_job(Path(request.script), request.arguments)
    refuse_manual_backward(job, f"{request.script}: onecurve run cannot train it")
    out = Path(request.out)
    leader = (World.from_environment() or World()).rank == 0
    lock = None
    if leader:
        refuse_foreign_folder(out)
        lock = claim_for(out, job.save)
    with _begun(job, request, out, lock) as run:
        if leader and not run.resumed:
            clear_previous_run(out, request.fresh)
        barrier()
        over = run.first_step == run.steps or (run.best is not None and run.best.out_of_patience)
        told = _summary(out) if run.resumed and over else None
        if told is not None:
            return _tell_again(told, request.quiet) if leader else None
        if leader:
            _leave_origin(run, out, request)
        sinks = _sinks(run, out, request)
        run.tell = lambda take_events: _tell(sinks, EventRecord(take_events.event, take_events.text))
        try:
            _tell(sinks, _start(run, request.predicted))
            if run.warning:
                _tell(sinks, EventRecord("warning", run.warning))
            if run.resumed:
                _tell(sinks, EventRecord("resumed", run.resumed))
            tally = _loop(run, sinks, stop)
            if tally.steps < run.steps:
                why = f", no better {run.best.evaluate.watch} in sight" if run.best and run.best.out_of_patience else ""
                _tell(sinks, EventRecord("stopped", f"after step {tally.steps} of {run.steps}{why}"))
            run.finish(tally.steps)
            run.save(out / WEIGHTS)
        finally:
            for sink in sinks:
                sink.close()
        if not leader:
            return None
        summary = RunSummary(
            out=str(out),
            plan=str(run.plan),
            ranks=run.world.size,
            steps=tally.steps,
            steps_planned=run.steps,
            loss=tally.loss,
            evaluation=tally.evaluation,
            best=BestEvaluation(run.best.evaluate.watch, run.best.value, run.best.step) if run.best else None,
            seconds=time.perf_counter() - begin,
            samples_per_second=tally.own_steps * job.global_batch / max(tally.training_seconds, 1e-9),
            step_seconds=statistics.median(tally.recent) if tally.recent else 0.0,
            predicted_step_seconds=sum(request.predicted.values()) or None,
        )
        replace_file(out / SUMMARY, [to_json(summary).encode()])
        return summary


def _begun(job: Job, request: RunRequest, out: Path, lock: RunLock | None) -> Run:
    try:
        run = Run(job, request.plan, out, request.fresh)
    except BaseException:
        if lock is not None:
            lock.release()
        raise
    run.lock = lock
    return run


def _leave_origin(run: Run, out: Path, request: RunRequest) -> None:
    """What an export will need to know."""
    to = run.job.save.to if run.job.save is not None else None
    place = "" if to is None else to if "://" in to else str(Path(to).resolve())
    origin = Origin(str(Path(request.script).resolve()), request.arguments, place)
    replace_file(out / ORIGIN, [to_json(origin).encode()])
    replace_file(out / PLAN, [to_toml(run.plan).encode()])
    keep_configuration(run.model, run.job.weights, out / CONFIGURATION)


def _summary(out: Path) -> RunSummary | None:
    """Of a run that ended before; None where it did not come to write one that can be read."""
    try:
        return from_json(RunSummary, (out / SUMMARY).read_bytes(), SUMMARY)
    except (OSError, OnecurveError):
        return None


def _tell_again(summary: RunSummary, quiet: bool) -> RunSummary:
    if not quiet:
        print(
            f"{summary.out}: this run has ended already; add --fresh to train anew, or give another --out", flush=True
        )
    return summary


def _loop(run: Run, sinks: Sequence[Sink], stop: Callable[[], bool]) -> Tally:
    """Train until the end or a stop."""
    run.trainer.stop_requested = stop
    tally = Tally(run.first_step, run.last_loss)
    newest: StepReport | None = None
    if run.best is not None and run.best.out_of_patience:  # it had stopped already
        return tally
    for batch in run:
        # On accelerators a step is read when the next has been queued, so that the host never waits.
        before, newest = newest, run.step(batch)
        read = before if run.trainer.update.skips_on_device else newest
        if read is not None:
            _tell_step(sinks, tally, read)
        if run.evaluation_due(batch.step):
            tally.evaluation = run.evaluate()
            _tell(sinks, tally.evaluation)
        if (read is not None and read.outcome.stop) or (run.best is not None and run.best.out_of_patience):
            break
    if run.trainer.update.skips_on_device and newest is not None:
        _tell_step(sinks, tally, newest)
    return tally


def _tell_step(sinks: Sequence[Sink], tally: Tally, report: StepReport) -> None:
    record = report.record()
    tally.add(record)
    _tell(sinks, record)


def _tell(sinks: Sequence[Sink], record: Record) -> None:
    for sink in sinks:
        sink.write(record)


def _sinks(run: Run, out: Path, request: RunRequest) -> list[Sink]:
    sinks: list[Sink] = [JsonLines(out / RECORDS / f"rank-{run.world.rank}.jsonl")]
    if run.world.rank == 0 and request.tensorboard:
        sinks.append(TensorBoard(out / TENSORBOARD))
    if run.world.rank == 0 and not request.quiet:
        sinks.append(Terminal(run.steps, Console()))
    return sinks


def _start(run: Run, predicted: dict[str, float]) -> StartRecord:
    return StartRecord(str(run.plan), run.world.size, run.device.kind, run.parameters, run.steps, predicted)
