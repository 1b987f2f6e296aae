"""One rank of `onecurve run`: the training loop, its records, and the files in the run's folder."""

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from onecurve.checkpoint.hugging_face import save_configuration
from onecurve.checkpoint.location import local_folder
from onecurve.checkpoint.saver import SaveEvent
from onecurve.describe.convert import from_json, to_document, to_json, to_plain, to_toml
from onecurve.describe.errors import CorruptedReplicaError, FaultyRankError, OnecurveError
from onecurve.describe.estimate import PredictedStep
from onecurve.describe.generation import Generation
from onecurve.describe.plan import Plan
from onecurve.describe.record import EventRecord
from onecurve.describe.requests import RunRequest
from onecurve.describe.summary import Ending, RunSummary
from onecurve.device.collectives import barrier
from onecurve.device.files import replace_file
from onecurve.device.world import World
from onecurve.job.script import load_job
from onecurve.job.trial import trial_job
from onecurve.launch.launcher import Launcher
from onecurve.launch.stop import Stop
from onecurve.model.adapters import has_adapters
from onecurve.report.intervals import Intervals
from onecurve.report.log import log_to_stderr
from onecurve.report.progress import Terminal
from onecurve.report.sink import JsonLines, Sink, TraceFile
from onecurve.report.text import RankConsole
from onecurve.report.tracking import Tracking
from onecurve.report.transfer import Transfer
from onecurve.runs.folder import (
    BEST_WEIGHTS,
    HUGGING_FACE,
    ORIGIN,
    PLAN,
    SUMMARY,
    WEIGHTS,
    RunOrigin,
    clear_previous_run,
    read_origin,
    read_summary,
    records_file,
    refuse_foreign_folder,
    traces_file,
)
from onecurve.runtime.build import RunBuilder
from onecurve.runtime.checkpoints import lock_run
from onecurve.runtime.data_cache import use_text
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.runtime.run import Run
from onecurve.runtime.run_settings import RunSettings
from onecurve.train.step_report import StepReport
from onecurve.verbs.async_training import AsyncTraining
from onecurve.verbs.job_code import changed_code, code_hashes
from onecurve.verbs.kept import LOCK_SECONDS, Kept
from onecurve.verbs.line_sampler import LineSampler
from onecurve.verbs.proof import PlanProof
from onecurve.verbs.row_access import row_access, row_address
from onecurve.verbs.run_log import LoopProgress, RunLog
from onecurve.verbs.trackers import open_trackers


class RunWorker:
    """A launched rank's run, through all its generations."""

    def __init__(self, request: str, _: Callable[[str], None]) -> None:
        asked = from_json(RunRequest, request.encode(), "request")
        if asked.verbose:
            log_to_stderr()
        self._training = Training(asked)

    def __call__(self, world: World, launcher: Launcher, generation: Generation) -> str:
        """Train in one generation; the result is the summary as JSON, on rank 0."""
        try:
            summary = self._training.train(generation.plan, world, launcher, Kept(launcher, generation))
        except CorruptedReplicaError as error:
            if world.rank in error.ranks:
                raise
            launcher.hand_over()
        return json.dumps(to_plain(summary)) if summary is not None else ""  # Python's JSON keeps NaN


class Training:
    """One rank's run."""

    def __init__(self, request: RunRequest) -> None:
        self._request, self._out = request, Path(request.out)
        self._begin = time.perf_counter()
        job = load_job(Path(request.script), request.arguments)
        job = trial_job(job, request.trial) if request.trial is not None else job
        self._job = job if request.audit is None else replace(job, audit=request.audit)
        self._job_seconds = time.perf_counter() - self._begin
        refuse_manual_backward(self._job, f"{request.script}: onecurve run cannot train it")
        self._code: dict[str, str] = {}
        """Of the first rank: hashes of the job's functions."""
        self._events: deque[SaveEvent] = deque()
        self._launcher: Launcher | None = None
        self._proof = PlanProof(request) if request.check else None
        self._first_step: int | None = None
        """Steps that were done before this process began; None until its first generation is built."""
        self.has_begun = False
        """True once a step is done: then a stop waits for the end of a step."""
        self._stop: Stop | None = None
        self._loading: Callable[[int, int], None] = lambda _, __: None
        settings = RunSettings(
            out=self._out,
            fresh=request.fresh,
            change=request.change,
            stop=lambda: self._stop is not None and self._stop(),
            regroup=lambda: self._launcher is not None and self._launcher.is_regroup_asked,
            hand_over=lambda: self._launcher.hand_over() if self._launcher is not None else None,
            waited=lambda: self._launcher.waited() if self._launcher is not None else None,
            on_straggler=self._note_straggler,
            on_load=lambda done, total: self._loading(done, total),
            on_event=self._events.append,
            on_facts=self._note_facts,
            rows=lambda world: row_access(self._job, self._launcher, world, bool(self._job.async_workers)),
            proof=self._proof,
        )
        self._builder = RunBuilder(self._job, settings)

    def train(
        self,
        plan: Plan | None,
        world: World,
        stop: Stop,
        kept: Kept | None = None,
    ) -> RunSummary | None:
        """Train in one generation, to the end or until a stop; return the summary on rank 0.

        `kept`: None if another launcher started the ranks.
        """
        self._stop, self._launcher = stop, kept.launcher if kept is not None else None
        generation = kept.generation if kept is not None else None
        request, out, is_first = self._request, self._out, world.rank == 0
        interruption = generation.interruption if generation is not None else None
        if is_first:
            self._code = self._code or code_hashes(self._job)  # before training changes the state of a loss
            refuse_foreign_folder(out)
            if not request.quiet:
                self._loading = Transfer(lambda text: print(f"loading  {text}", flush=True))
        lock = lock_run(out, self._job.save, LOCK_SECONDS if interruption is not None else 0.0) if is_first else None
        memory = kept.memory if kept is not None else None
        with self._builder.build(plan, world, lock, interruption, memory) as run:
            if is_first and not run.resumed:
                clear_previous_run(out, request.fresh)
            barrier()
            if self._first_step is None:
                self._first_step = run.first_step
            is_over = run.first_step == run.steps or run.out_of_patience
            earlier = read_summary(out) if run.resumed and is_over else None
            if earlier is not None:
                return _say_ended(earlier, request.quiet) if is_first else None
            if is_first:
                self._write_origin(run)
            progress, best_weights = self._log_training(run, generation)
            if not is_first:
                return None
            ended = _ending(run, progress.steps, stop)
            seconds = time.perf_counter() - self._begin
            predicted = generation.predicted if generation is not None else PredictedStep()
            summary = progress.summary(run, out, ended, best_weights, seconds, predicted, self._first_step)
            replace_file(out / SUMMARY, [to_json(to_document(summary)).encode()])
            return summary

    def _write_origin(self, run: Run) -> None:
        """Write which job this run trains, its plan and, for a Hugging Face model, its configuration."""
        out, to = self._out, run.job.save.to if run.job.save is not None else None
        folder = local_folder(to) if to is not None else None
        earlier = None
        with suppress(OnecurveError, OSError):  # it is written again below
            earlier = read_origin(out) if run.resumed else None
        if earlier is not None and (changed := changed_code(earlier.code, self._code)):
            self._warn(f"{changed}; the run continues with the new one. To train from the beginning, add --fresh")
        origin = RunOrigin(
            script=str(Path(self._request.script).resolve()),
            arguments=self._request.arguments,
            checkpoints=str(folder.resolve()) if folder is not None else to or "",
            changes=run.changes,
            proof=self._proof.key if self._proof is not None else "",
            code=self._code,
        )
        replace_file(out / ORIGIN, [to_json(to_document(origin)).encode()])
        replace_file(out / PLAN, [to_toml(run.plan).encode()])
        save_configuration(run.model, run.job.weights, out / HUGGING_FACE, adapters=has_adapters(run.model))

    def _note_straggler(self, speed: float, seconds: float) -> None:
        if self._launcher is not None:
            self._launcher.straggles(speed, seconds)

    def _warn(self, text: str) -> None:
        self._events.append(SaveEvent("warning", text))

    def _note_facts(self) -> None:
        if self._launcher is not None:
            self._launcher.page.facts_known = 1

    def _log_training(self, run: Run, generation: Generation | None) -> tuple[LoopProgress, str | None]:
        """Train, with records of it, and write the weights; return the progress and the file of the best weights."""
        traces = TraceFile(traces_file(self._out, run.world.rank))
        lines = LineSampler() if run.world.rank == 0 else None
        log = RunLog(_sinks(run, self._out, self._request, self._warn), traces, self._events, generation, lines)
        try:
            log.start(run, self._proof.event if self._proof is not None else None, self._start_seconds(run))
            log.write_events()
            progress = _loop(run, self._reports(run), log, self._launcher)
            if self._launcher is not None:
                self._launcher.page.is_training = 0
            if progress.consecutive_skips:
                log.write(EventRecord("warning", _skipped_text(progress.consecutive_skips)))
            if progress.steps < run.steps:
                why = (
                    f", because {run.job.evaluate.watch} no longer improves"
                    if run.out_of_patience and run.job.evaluate
                    else ""
                )
                log.write(EventRecord("stopped", f"after step {progress.steps} of {run.steps}{why}"))
            run.finish()
            log.write_events()
            if run.components.cache is not None and run.world.local_rank == 0:
                log.write(EventRecord("cache", use_text(run.components.cache.use)))
            with run.account.measure("weights"):
                run.save(self._out / WEIGHTS, Transfer(lambda text: log.write(EventRecord("weights", text))))
                best = _save_best(run, self._out / BEST_WEIGHTS, log)
            with run.account.measure("test"):
                if progress.steps == run.steps or run.out_of_patience:
                    progress.test = run.test()
            if progress.test is not None:
                log.write(progress.test)
            log.end(run.account.rest())
            return progress, best
        except FaultyRankError:
            log.write_events()
            raise
        finally:
            log.close()

    def _start_seconds(self, run: Run) -> dict[str, float]:
        """The seconds since the command was started, by cause."""
        known = {"plan": self._request.plan_seconds, "job": self._job_seconds, **run.start_seconds}
        return {"launch": run.begin - self._request.begin - sum(known.values()), **known}

    def _reports(self, run: Run) -> Iterable[StepReport]:
        """The steps, as they are done."""
        if not run.job.async_workers:
            return self._steps(run)
        assert run.job.row_servers is not None
        self.has_begun = True
        rows = row_address(run.job.row_servers, self._launcher, run.world)
        say = self._launcher.say if self._launcher is not None else partial(print, file=sys.stderr, flush=True)
        return AsyncTraining(run, self._request, rows, lambda: self._stop is not None and self._stop(), say)

    def _steps(self, run: Run) -> Iterator[StepReport]:
        for batch in run:
            report = run.step(batch)
            self.has_begun = True
            yield report


def _loop(run: Run, reports: Iterable[StepReport], log: RunLog, launcher: Launcher | None) -> LoopProgress:
    """Train until the last step, a stop request, or early stopping. `launcher`: it sees the steps that are done."""
    progress = LoopProgress(steps=run.first_step, loss=run.last_loss)
    newest: StepReport | None = None
    if run.out_of_patience:  # the resumed run had stopped early
        return progress
    for report in reports:
        previous, newest = newest, report
        if launcher is not None:
            launcher.page.finish_step(report.step)
        if previous is None:
            log.first_step(run, sum(newest.seconds.values()))
        readable = previous if run.reports_late else newest
        if readable is not None:
            _log_step(log, progress, readable)
        if run.evaluation_due(report.step):
            progress.evaluation = run.evaluate()
            log.write(progress.evaluation)
        stops = (readable is not None and readable.outcome.stop) or run.out_of_patience
        if not stops:  # the last checkpoint is made by run.finish()
            run.checkpoint()
            log.write_events()
        if stops:
            break
    if run.reports_late and newest is not None:
        _log_step(log, progress, newest)
    return progress


def _log_step(log: RunLog, progress: LoopProgress, report: StepReport) -> None:
    record = log.step(report)
    progress.add(record)


def _ending(run: Run, steps: int, stop: Stop) -> Ending:
    if steps == run.steps:
        return "finished"
    return "early_stopping" if run.out_of_patience else stop.signal


def _save_best(run: Run, path: Path, log: RunLog) -> str | None:
    """Write the weights of the best evaluation; return the file, or None if there is none. All ranks call it."""
    if run.best is None or run.best.best is None:
        return None
    try:
        run.save_best(path)
    except OnecurveError as error:  # the run itself has ended well
        path.unlink(missing_ok=True)
        log.write(EventRecord("warning", str(error)))
        return None
    return str(path)


def _skipped_text(skips: int) -> str:
    which = f"the last {skips} steps" if skips > 1 else "the last step"
    return f"{which} changed nothing, because the loss or a gradient was not finite"


def _say_ended(summary: RunSummary, quiet: bool) -> RunSummary:
    if not quiet:
        print(
            f"{summary.out}: this run has already ended; add --fresh to train again, or give another --out", flush=True
        )
    return summary


def _sinks(run: Run, out: Path, request: RunRequest, warn: Callable[[str], None]) -> list[Sink]:
    records = JsonLines(records_file(out, run.world.rank))
    sinks: list[Sink] = [records if run.world.rank == 0 else Intervals(records)]
    if run.world.rank == 0:
        trackers = open_trackers([*run.job.trackers, *request.track], request.metrics)
        facts = {"script": request.script, "arguments": " ".join(request.arguments)}
        sinks.append(Tracking(trackers, out, facts, run.job.global_batch, warn))
    if run.world.rank == 0 and not request.quiet:
        sinks.append(Terminal(run.steps, run.job.global_batch, RankConsole(), run.components.epoch_samples))
    return sinks
