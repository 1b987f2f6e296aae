"""Tries what `onecurve why` suggests: a few steps from the newest checkpoint, with the change and without it."""

import os
import shutil
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.location import local_folder
from onecurve.checkpoint.store import step_of
from onecurve.describe.diagnosis import Diagnosis, Finding, TriedChange
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.record import FIRST_STEPS, PAUSES, StartRecord, StepRecord
from onecurve.describe.requests import RunRequest, Trial
from onecurve.job.script_path import has_own_loop
from onecurve.runs.folder import CHECKPOINTS, ORIGIN, SCRATCH, RunOrigin, read_origin
from onecurve.runs.records import read_records
from onecurve.verbs.run import launch_run

_STEPS = 20
_MAX_STEPS = 100
_MAX_CHANGES = 2
_TRIED_FIELDS = ("workers", "batch_norm", "save_every", "evaluate_every")
_COMPARED_FIELDS = ("batch_norm",)
"""Fields of the job that a checkpoint compares, besides `steps`."""

_BY_HAND = "make the change yourself, run with another --out, and compare: onecurve why RUN1 RUN2"

Say = Callable[[str], None]


def try_changes(
    folder: Path, diagnosis: Diagnosis, start: StartRecord, plan: Plan, say: Say
) -> tuple[TriedChange, ...]:
    """Try the changes of the first findings, each next to the run as it was."""
    origin = _origin(folder, diagnosis)
    trials = _Trials(folder=folder, origin=origin, diagnosis=diagnosis, start=start, plan=plan, say=say)
    return tuple(trials.tried(finding) for finding in diagnosis.findings[:_MAX_CHANGES])


def _origin(folder: Path, diagnosis: Diagnosis) -> RunOrigin:
    """The job of the run; refuse runs that cannot be tried here."""
    if diagnosis.in_progress:
        raise OnecurveError("--try: the run is in progress, and a trial beside it would slow both down; try it later")
    if diagnosis.hosts > 1:
        raise OnecurveError(f"--try: the run had {diagnosis.hosts} hosts, and a trial has only this one; {_BY_HAND}")
    origin = read_origin(folder)
    if origin is None or not Path(origin.script).is_file():
        script = origin.script if origin is not None else "unknown"
        raise OnecurveError(f"--try: the run's script is not here ({script}); put it back, or correct it in {ORIGIN}")
    if has_own_loop(Path(origin.script)):
        raise OnecurveError(f"--try: {origin.script} has its own training loop; {_BY_HAND}")
    return origin


@dataclass
class _Trials:
    folder: Path
    origin: RunOrigin
    diagnosis: Diagnosis
    start: StartRecord
    plan: Plan
    say: Say

    def __post_init__(self) -> None:
        self._unchanged: dict[tuple[int, str], float] = {}
        """Measured seconds of a step without a change, by the steps and the pause of a trial."""

    def tried(self, finding: Finding) -> TriedChange:
        """Try one change. If that fails, the reason is in its note."""
        result = TriedChange(change=finding.change, predicted=finding.gain)
        if not finding.plan and not (finding.job and set(finding.job) <= set(_TRIED_FIELDS)):
            return replace(result, note=f"--try cannot make this change; {_BY_HAND}")
        pause = finding.cause if finding.cause in PAUSES else ""
        steps = max(_STEPS, *(int(value) for name, value in finding.job.items() if name.endswith("_every")), 0)
        if steps > _MAX_STEPS:
            return replace(result, note=f"a trial would need {steps:,} steps")
        try:
            before = self._seconds_unchanged(steps, pause)
            self.say(f"trying {finding.change}")
            plan = Plan.parse(finding.plan) if finding.plan else self.plan
            after = self._seconds(plan, dict(finding.job), steps, pause)
        except OnecurveError as error:
            return replace(result, note=f"the trial failed: {error}")
        # What a trial leaves out takes as long as in the run.
        rest = sum(seconds for name, seconds in self.diagnosis.times.pauses.items() if name != pause)
        measured = 1 - (after + rest) / (before + rest)
        return replace(result, steps=steps, before=before + rest, after=after + rest, measured=measured)

    def _seconds_unchanged(self, steps: int, pause: str) -> float:
        if (steps, pause) not in self._unchanged:
            self.say("trying the run as it is, for comparison")
            self._unchanged[steps, pause] = self._seconds(self.plan, {}, steps, pause)
        return self._unchanged[steps, pause]

    def _seconds(self, plan: Plan, job: dict[str, float | str], steps: int, pause: str) -> float:
        """Mean seconds of a step of a trial, after its first steps."""
        with tempfile.TemporaryDirectory(prefix=SCRATCH, dir=self.folder) as scratch:
            done = _link_checkpoint(self.folder, self.origin, Path(scratch))
            last = done + FIRST_STEPS + steps
            trial = Trial(steps=last, epoch_samples=self.start.epoch_samples, job=job, pause=pause)
            compared = ("steps", *(name for name in job if name in _COMPARED_FIELDS))
            request = RunRequest(
                script=self.origin.script,
                arguments=self.origin.arguments,
                out=scratch,
                fresh=False,
                quiet=True,
                check=False,
                change=compared if done else (),
                trial=trial,
            )
            launch_run(request, plan, self.say)
            records = [each for each in read_records(Path(scratch)) if isinstance(each, StepRecord)]
            return statistics.mean(sum(record.seconds.values()) for record in records[-steps:])


def _link_checkpoint(folder: Path, origin: RunOrigin, scratch: Path) -> int:
    """Let a trial continue from the newest checkpoint of a run; return its step, or 0 if there is none here."""
    source = local_folder(origin.checkpoints) if origin.checkpoints else folder / CHECKPOINTS
    names = LocalStore(source).names() if source is not None else []
    if source is None or not names:
        return 0
    # Files of checkpoints are never written again, and what a trial removes are its own links.
    shutil.copytree(source / names[-1], scratch / CHECKPOINTS / names[-1], copy_function=_link)
    return step_of(names[-1])


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
