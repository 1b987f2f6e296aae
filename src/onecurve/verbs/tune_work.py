"""What one process does for a study: it starts trials, follows them, and gives up those that others are better than."""

import math
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from onecurve.data.training_data import open_data
from onecurve.describe.convert import to_toml
from onecurve.describe.errors import InterruptError, OnecurveError
from onecurve.describe.tuning import Tuning
from onecurve.describe.units import counted
from onecurve.device.files import replace_file
from onecurve.job.job import Job
from onecurve.job.script import load_job
from onecurve.launch.stop import StopRequest
from onecurve.page.study_page import study_page
from onecurve.planner.clusters import this_host
from onecurve.report.tune import best_file, trial_line
from onecurve.runs.folder import BEST_WEIGHTS, CHECKPOINTS, WEIGHTS
from onecurve.runtime.manual import refuse_manual_backward
from onecurve.study.objective import Objective, TrialProgress
from onecurve.study.search_space import Choices, SearchSpace, read_space
from onecurve.study.study import Study, TakenTrial
from onecurve.study.trial_process import Slot, TrialProcess
from onecurve.verbs import tune_trial
from onecurve.verbs.probe import probe_this_host
from onecurve.verbs.tune_slots import slots

BEST, PAGE = "best.toml", "tune.html"
_POLL_SECONDS = 0.5
_RENEW_SECONDS = 10.0
_MAX_FAILURES = 3
"""Trials in a row that may fail; then the study ends."""

Say = Callable[[str], None]


def search(script: Path, arguments: Sequence[str], trials: int, folder: Path, say: Say) -> Tuning:
    """Try until there are so many trials."""
    space = read_space(arguments)
    say("reading the job")
    job = load_job(script, space.arguments(_first_of(space)))
    refuse_manual_backward(job, f"{script}: it cannot be tuned")
    data = open_data(job)
    objective = _objective(job, data.steps)
    parts = slots(job, data, this_host(probe_this_host, say), trials, say)
    folder.mkdir(parents=True, exist_ok=True)
    study = Study(folder, space, maximize=objective.maximize, steps=objective.steps, seed=job.seed)
    say(f"{counted(len(parts), 'trial')} at a time, compared by {objective.text}")
    work = _Work(script=script, space=space, folder=folder, objective=objective, study=study, wanted=trials, say=say)
    begin = time.monotonic()
    try:
        work.run(parts)
    finally:
        tuning = _result(work, time.monotonic() - begin)
    return tuning


def _first_of(space: SearchSpace) -> dict[str, str]:
    """Values with which the job is loaded to see what it is."""
    return {
        name: each.values[0] if isinstance(each, Choices) else each.text(each.low)
        for name, each in space.searched.items()
    }


def _objective(job: Job, steps: int) -> Objective:
    evaluate = job.evaluate
    if evaluate is None:
        return Objective(steps=steps)
    every = evaluate.every if isinstance(evaluate.every, int) else max(1, math.ceil(steps / (job.epochs or 1)))
    return Objective(
        steps=steps, watch=evaluate.watch, maximize=evaluate.better == "higher", evaluations=steps // every
    )


@dataclass
class _Running:
    """A trial that is being run."""

    trial: TakenTrial
    process: TrialProcess
    progress: TrialProgress
    renewed: float


@dataclass
class _Work:
    """What this process does for a study."""

    script: Path
    space: SearchSpace
    folder: Path
    objective: Objective
    study: Study
    wanted: int
    say: Say

    def __post_init__(self) -> None:
        self._failures = 0
        (self.folder / "logs").mkdir(exist_ok=True)

    def run(self, parts: Sequence[Slot]) -> None:
        """Run trials until all are done, or a signal comes."""
        running: dict[int, _Running] = {}
        with StopRequest(alone=True) as stop:
            try:
                while not stop():
                    for number, slot in enumerate(parts):
                        if number not in running and (trial := self.study.take(self.wanted)) is not None:
                            running[number] = self._start(trial, slot)
                    if not running:
                        return
                    time.sleep(_POLL_SECONDS)
                    for number, each in [*running.items()]:
                        if self._follow(each):
                            del running[number]
            finally:
                for each in running.values():
                    each.process.stop()
                for each in running.values():
                    each.process.wait()
                    each.trial.leave()
            raise InterruptError("the study was stopped; started again, it continues", stop.signal)

    def trial_folder(self, number: int) -> Path:
        return self.folder / "trials" / f"{number:05d}"

    def _start(self, trial: TakenTrial, slot: Slot) -> _Running:
        folder = self.trial_folder(trial.number)
        words = [str(self.script), str(folder), *self.space.arguments(dict(trial.texts))]
        process = TrialProcess(tune_trial.__name__, slot, words, self.folder / "logs" / f"{trial.number:05d}.txt")
        return _Running(trial, process, TrialProgress(folder, self.objective), time.monotonic())

    def _follow(self, running: _Running) -> bool:
        """Read what a trial has done; return True if it has ended."""
        trial, process, progress = running.trial, running.process, running.progress
        exit_code = process.exit_code  # before the records are read, so that none is missed
        if time.monotonic() - running.renewed > _RENEW_SECONDS:
            running.renewed = time.monotonic()
            trial.renew()
        given_up = [trial.report(step, value) for step, value in progress.new_values()]
        if exit_code is None and not any(given_up):
            return False
        if exit_code == 0 and math.isfinite(progress.value):  # also if it was so fast that it could not be given up
            self._failures = 0
            trial.finish(progress.value, progress.step, process.seconds)
        elif exit_code is None or any(given_up) or progress.diverges:
            process.stop()
            process.wait()
            progress.new_values()
            trial.give_up(progress.step, process.seconds, "it diverges" if progress.diverges else "")
            self._remove_weights(trial.number)
        else:
            message = process.message if exit_code else f"its {self.objective.text} is not a number"
            trial.fail(progress.step, process.seconds, message)
            self._failures += 1
        done = next(each for each in self.study.trials() if each.number == trial.number)
        self.say(trial_line(done, self.objective.text))
        if self._failures >= _MAX_FAILURES:
            raise OnecurveError(f"tune: {_MAX_FAILURES} trials in a row have failed, the last one with: {done.note}")
        return True

    def _remove_weights(self, number: int) -> None:
        """Remove what a trial that was given up leaves besides its records."""
        folder = self.trial_folder(number)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        for name in (WEIGHTS, BEST_WEIGHTS):
            (folder / name).unlink(missing_ok=True)


def _result(work: _Work, seconds: float) -> Tuning:
    """The result so far, which is written to the study's folder too."""
    found = work.study.trials()
    best = found[0] if found and found[0].outcome == "finished" else None
    words = (
        ["onecurve", "run", str(work.script), *work.space.arguments(dict(best.arguments))] if best is not None else []
    )
    tuning = Tuning(
        out=str(work.folder),
        objective=work.objective.text,
        followed=work.objective.followed,
        maximize=work.objective.maximize,
        trials=tuple(found),
        importance=work.study.importance(),
        command=shlex.join(words),
        trial_steps=work.objective.steps,
        seconds=seconds,
    )
    if best is not None:
        replace_file(work.folder / BEST, [to_toml(best_file(tuning, best)).encode()])
    replace_file(work.folder / PAGE, [study_page(tuning).encode()])
    return tuning
