"""onecurve run: train."""

import json
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from onecurve.describe.convert import from_plain, to_json, to_plain, write_toml
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.record import EvaluationRecord, EventRecord, Record
from onecurve.describe.summary import RunSummary
from onecurve.device.device import here
from onecurve.device.world import World
from onecurve.job.script import load_job
from onecurve.launch.local import launch
from onecurve.launch.stop import Stop
from onecurve.report.progress import Terminal
from onecurve.report.sink import JsonLines, Sink
from onecurve.train.trainer import Report
from onecurve.verbs.assembly import ranks_for
from onecurve.verbs.prepare import Run

_SUMMARY = "summary.json"
_WEIGHTS = "weights.safetensors"


@dataclass(frozen=True)
class RunRequest:
    """What the launcher hands to every rank."""

    script: str
    arguments: tuple[str, ...]
    plan: str
    out: str
    quiet: bool


def run(
    script: str | Path,
    arguments: Sequence[str] = (),
    *,
    plan: str | Plan = "auto",
    ranks: int | None = None,
    out: str | Path | None = None,
    fresh: bool = False,
    quiet: bool = False,
) -> RunSummary | None:
    """Train the job of a script: `oc.run("train.py", ["lr=1e-4"], ranks=2)`.

    Starts its ranks on this host; where torchrun has set the environment it is one of them, and returns None on all but
    rank 0.
    """
    script = Path(script)
    if not script.is_file():
        raise OnecurveError(f"{script}: no such file; give the Python file that defines job()")
    folder = Path(out) if out is not None else Path("runs") / script.stem
    request = RunRequest(str(script), tuple(arguments), str(plan), str(folder), quiet)
    if World.from_environment() is not None:
        return _train(request, Stop())
    ranks = ranks_for(str(plan), ranks, here())
    _make_room(folder, fresh)
    if ranks == 1:
        return _train(request, Stop())
    if not launch("onecurve.verbs.rank", ["run", to_json(request)], ranks) and not (folder / _SUMMARY).exists():
        raise OnecurveError("interrupted before the first step was done; nothing was saved")
    return from_plain(RunSummary, json.loads((folder / _SUMMARY).read_text()), str(folder / _SUMMARY))


def run_as_rank(request: str, stop: Callable[[], bool]) -> None:
    _train(from_plain(RunRequest, json.loads(request), "request"), stop)


def _train(request: RunRequest, stop: Callable[[], bool]) -> RunSummary | None:
    """One rank's whole run; the summary on rank 0."""
    job = load_job(Path(request.script), request.arguments)
    out = Path(request.out)
    with Run(job, request.plan) as run:
        leader = run.world.rank == 0
        sinks = _sinks(run, out, request.quiet)
        try:
            _tell(sinks, EventRecord("start", _facts(run)))
            if run.warning:
                _tell(sinks, EventRecord("warning", {"model": run.warning}))
            begin = time.perf_counter()
            done, loss, evaluation = _loop(run, sinks, stop)
            seconds = time.perf_counter() - begin
            if done < run.steps:
                _tell(sinks, EventRecord("stopped", {"after step": f"{done} of {run.steps}"}))
        finally:
            for sink in sinks:
                sink.close()
        run.save(out / _WEIGHTS)
        if not leader:
            return None
        write_toml(run.plan, out / "plan.toml")
        speed = done * job.global_batch / seconds
        summary = RunSummary(str(out), str(run.plan), run.world.size, done, run.steps, loss, evaluation, seconds, speed)
        (out / _SUMMARY).write_text(json.dumps(to_plain(summary), indent=2) + "\n")
        return summary


def _loop(run: Run, sinks: Sequence[Sink], stop: Callable[[], bool]) -> tuple[int, float, EvaluationRecord | None]:
    """Train until the end or a stop: steps done, the last loss, the last evaluation."""
    run.trainer.stop_requested = stop
    evaluation: EvaluationRecord | None = None
    newest: Report | None = None
    for batch in run:
        # On accelerators a step is read when the next has been queued, so that the host never waits.
        before, newest = newest, run.step(batch)
        read = before if run.trainer.unread else newest
        if read is not None:
            _tell(sinks, read.record())
        stopped = read is not None and read.outcome.stop
        if run.evaluation_due(batch.step):
            evaluation = run.evaluate(batch.step)
            _tell(sinks, evaluation)
        if stopped:
            break
    assert newest is not None
    if run.trainer.unread:
        _tell(sinks, newest.record())
    return newest.step + 1, newest.loss, evaluation


def _tell(sinks: Sequence[Sink], record: Record) -> None:
    for sink in sinks:
        sink.write(record)


def _sinks(run: Run, out: Path, quiet: bool) -> list[Sink]:
    sinks: list[Sink] = [JsonLines(out / "records" / f"rank-{run.world.rank}.jsonl")]
    if run.world.rank == 0 and not quiet:
        sinks.append(Terminal(run.steps, Console()))
    return sinks


def _facts(run: Run) -> dict[str, str]:
    return {
        "plan": str(run.plan),
        "ranks": f"{run.world.size} on {run.device.kind}",
        "parameters": f"{run.parameters:,}",
        "steps": f"{run.steps:,}",
    }


def _make_room(folder: Path, fresh: bool) -> None:
    """A finished or broken run is never written over by accident."""
    if folder.exists() and not folder.is_dir():
        raise OnecurveError(f"{folder}: is a file; give another --out")
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / "records").is_dir():
            raise OnecurveError(f"{folder}: is not empty and not a run's folder; give another --out")
        if not fresh:
            raise OnecurveError(f"{folder}: holds a run already; add --fresh to replace it, or give another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
