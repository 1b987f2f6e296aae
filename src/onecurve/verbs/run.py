"""onecurve run: train."""

import json
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from onecurve.describe.convert import from_plain, to_json, to_plain, write_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.record import EvaluationRecord, EventRecord, Record, StartRecord, StepRecord
from onecurve.describe.summary import BestEvaluation, RunSummary
from onecurve.device.device import here
from onecurve.device.exchange import barrier
from onecurve.device.world import World
from onecurve.job.script import load_job
from onecurve.launch.local import launch
from onecurve.launch.stop import Stop
from onecurve.report.progress import Terminal
from onecurve.report.sink import JsonLines, Sink
from onecurve.report.tensorboard import TensorBoard
from onecurve.train.best import Best
from onecurve.train.outcome import Report
from onecurve.verbs.assembly import ranks_for
from onecurve.verbs.kept import refuse_kept_backward
from onecurve.verbs.prepare import Run

_SUMMARY = "summary.json"
_WEIGHTS = "weights.safetensors"
_HOPELESS = 50  # a loss scale has long been found by then


@dataclass(frozen=True)
class RunRequest:
    """What the launcher hands to every rank."""

    script: str
    arguments: tuple[str, ...]
    plan: str
    out: str
    fresh: bool
    quiet: bool
    tensorboard: bool
    result: str = ""
    """Where rank 0 leaves the summary for the launcher."""


@dataclass
class Tally:
    """What the loop has done so far."""

    steps: int = 0
    loss: float = math.nan
    evaluation: EvaluationRecord | None = None
    best: Best | None = None
    training_seconds: float = 0.0
    skipped_in_a_row: int = 0

    def add(self, record: StepRecord) -> None:
        self.steps, self.loss = record.step + 1, record.loss
        self.skipped_in_a_row = self.skipped_in_a_row + 1 if record.skipped else 0
        if self.skipped_in_a_row == _HOPELESS:
            raise OnecurveError(
                f"the loss or a gradient was not finite {_HOPELESS} steps in a row, up to step {self.steps}; try a "
                "smaller learning rate or clip=1.0, and look for bad values in the data"
            )
        self.training_seconds += sum(record.seconds.values()) - record.seconds["evaluation"]


def run(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    plan: str | Plan = "auto",
    ranks: int | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    quiet: bool = False,
    tensorboard: bool = False,
) -> RunSummary | None:
    """Train the job of a script: `oc.run("train.py", ["lr=1e-4"], ranks=2)`.

    Starts its ranks on this host; where torchrun has set the environment it is one of them, and returns None on all but
    rank 0.
    """
    script = Path(script)
    if not script.is_file():
        raise OnecurveError(f"{script}: no such file; give the Python file that defines job()")
    folder = Path(out) if out is not None else Path("runs") / script.stem
    request = RunRequest(str(script), tuple(arguments), str(plan), str(folder), fresh, quiet, tensorboard)
    alone = World.from_environment() is None
    if alone:
        ranks = ranks_for(str(plan), ranks, here())
        _refuse_used(folder, fresh)
    if not alone or ranks == 1:
        with Stop() as stop:
            return _train(request, stop)
    assert ranks is not None
    if sys.stdout.isatty() and not quiet:
        print(f"starting {ranks} ranks", flush=True)
    with tempfile.TemporaryDirectory(prefix="onecurve-run-") as scratch:
        result = Path(scratch) / _SUMMARY
        launch("onecurve.verbs.rank", ["run", to_json(replace(request, result=str(result)))], ranks)
        if not result.exists():
            raise OnecurveError("interrupted before the ranks could finish a step and save; nothing was saved")
        return from_plain(RunSummary, json.loads(result.read_text()), _SUMMARY)


def run_as_rank(request: str, stop: Callable[[], bool]) -> None:
    asked = from_plain(RunRequest, json.loads(request), "request")
    summary = _train(asked, stop)
    if summary is not None:
        Path(asked.result).write_text(json.dumps(to_plain(summary)))  # JSON proper has no word for NaN


def _train(request: RunRequest, stop: Callable[[], bool]) -> RunSummary | None:
    """One rank's whole run; the summary on rank 0."""
    begin = time.perf_counter()
    job = load_job(Path(request.script), request.arguments)
    refuse_kept_backward(job, f"{request.script}: onecurve run cannot train it")
    out = Path(request.out)
    with Run(job, request.plan) as run:
        leader = run.world.rank == 0
        if leader:
            _make_room(out, request.fresh)
        barrier()
        sinks = _sinks(run, out, request)
        try:
            _tell(sinks, _start(run))
            if run.warning:
                _tell(sinks, EventRecord("warning", run.warning))
            tally = _loop(run, sinks, stop)
            if tally.steps < run.steps:
                why = f", no better {tally.best.evaluate.watch} in sight" if tally.best and tally.best.hopeless else ""
                _tell(sinks, EventRecord("stopped", f"after step {tally.steps} of {run.steps}{why}"))
        finally:
            for sink in sinks:
                sink.close()
        run.save(out / _WEIGHTS)
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
            best=BestEvaluation(tally.best.evaluate.watch, tally.best.value, tally.best.step) if tally.best else None,
            seconds=time.perf_counter() - begin,
            samples_per_second=tally.steps * job.global_batch / tally.training_seconds,
        )
        write_toml(run.plan, out / "plan.toml")
        (out / _SUMMARY).write_text(to_json(summary) + "\n")
        return summary


def _loop(run: Run, sinks: Sequence[Sink], stop: Callable[[], bool]) -> Tally:
    """Train until the end or a stop."""
    run.trainer.stop_requested = stop
    tally = Tally(best=Best(run.job.evaluate) if run.job.evaluate else None)
    newest: Report | None = None
    for batch in run:
        # On accelerators a step is read when the next has been queued, so that the host never waits.
        before, newest = newest, run.step(batch)
        read = before if run.trainer.update.unread else newest
        if read is not None:
            _tell_step(sinks, tally, read)
        if run.evaluation_due(batch.step):
            tally.evaluation = run.evaluate()
            _tell(sinks, tally.evaluation)
            assert tally.best is not None
            tally.best.add(tally.evaluation)
        if (read is not None and read.outcome.stop) or (tally.best is not None and tally.best.hopeless):
            break
    if run.trainer.update.unread and newest is not None:
        _tell_step(sinks, tally, newest)
    return tally


def _tell_step(sinks: Sequence[Sink], tally: Tally, report: Report) -> None:
    record = report.record()
    tally.add(record)
    _tell(sinks, record)


def _tell(sinks: Sequence[Sink], record: Record) -> None:
    for sink in sinks:
        sink.write(record)


def _sinks(run: Run, out: Path, request: RunRequest) -> list[Sink]:
    sinks: list[Sink] = [JsonLines(out / "records" / f"rank-{run.world.rank}.jsonl")]
    if run.world.rank == 0 and request.tensorboard:
        sinks.append(TensorBoard(out / "tensorboard"))
    if run.world.rank == 0 and not request.quiet:
        sinks.append(Terminal(run.steps, Console()))
    return sinks


def _start(run: Run) -> StartRecord:
    return StartRecord(str(run.plan), run.world.size, run.device.kind, run.parameters, run.steps)


def _refuse_used(folder: Path, fresh: bool) -> None:
    """A finished or broken run is never written over by accident, and what is not a run never at all."""
    if folder.exists() and not folder.is_dir():
        raise OnecurveError(f"{folder}: is a file; give another --out")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "records" / "rank-0.jsonl").is_file():
            raise OnecurveError(f"{folder}: is not empty and not a run's folder; give another --out")
        if not fresh and (folder / _WEIGHTS).exists():
            raise OnecurveError(f"{folder}: holds a run already; add --fresh to replace it, or give another --out")


def _make_room(folder: Path, fresh: bool) -> None:
    """Remove what a run before has written, and nothing else."""
    _refuse_used(folder, fresh)
    try:
        _clear(folder)
    except OSError as error:
        raise OnecurveError(f"{folder}: cannot be written ({error.strerror}); give another --out") from None


def _clear(folder: Path) -> None:
    for name in ("records", "tensorboard"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for name in (_WEIGHTS, _SUMMARY, "plan.toml"):
        (folder / name).unlink(missing_ok=True)
    folder.mkdir(parents=True, exist_ok=True)
