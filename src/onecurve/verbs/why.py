"""onecurve why: where did the time of a run go, what limits it, and what should be changed?"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import read_toml, to_document, to_json
from onecurve.describe.diagnosis import Diagnosis, TriedChange, TriedChanges
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.files import replace_file
from onecurve.diagnose.diagnosis import Prediction, diagnose
from onecurve.diagnose.history import RunHistory
from onecurve.diagnose.history_reader import read_history
from onecurve.diagnose.run_status import state_of
from onecurve.diagnose.traces import aligned_traces
from onecurve.page.run_page import run_page
from onecurve.report.trace import write_trace
from onecurve.runs.folder import ORIGIN, PLAN, TRIALS, read_origin, read_trials
from onecurve.verbs import trials
from onecurve.verbs.run_copy import is_remote, readable_folder
from onecurve.verbs.status import is_alive

_MAX_SHOWN_RANKS = 16
"""Ranks in the page's time line of a step."""

Say = Callable[[str], None]


def why(
    run: str | Path,
    *,
    html: str | Path | None = None,
    trace: str | Path | None = None,
    try_changes: bool = False,
    say: Say = lambda _: None,
) -> Diagnosis:
    """Find out where the time of a run went, what limits it, and what to change, as `onecurve why` does.

    The run may be in progress. The records in its folder are enough for that; to say what another plan would gain, its
    script is loaded and the model traced, as `onecurve plan` does.

    Args:
        run: The run's folder, or the URL of one.
        html: Path of a page to write: one file with charts of the run, which needs no network. Default: None, none is
            written.
        trace: Path of a trace to write, which Perfetto (ui.perfetto.dev) shows: the steps whose times were recorded one
            by one, of all ranks, with aligned clocks. Default: None, none is written.
        try_changes: Try what the first two findings suggest: 20 or more steps from the newest checkpoint, with the
            change and without it, in a folder that is removed afterwards. The run must have ended. Default: False.
        say: A function that is called with short texts about what is being done. Default: they are dropped.

    Returns:
        The seconds of a step and of the whole run by cause, and what limits the run: each finding with the gain of a
        change, and the change.

    Example::

        diagnosis = oc.why("runs/first")
        for finding in diagnosis.findings:
            print(finding.limit, finding.change, finding.gain.expected)
    """
    for file in (html, trace):
        if file is not None and not Path(file).parent.is_dir():
            raise OnecurveError(f"{file}: its folder does not exist; create it, or give another path")
    if try_changes and is_remote(run):
        raise OnecurveError(
            f"--try: a trial continues from a checkpoint on this host, and the run is at {run}; copy its folder to "
            "this host, or call why there"
        )
    say("reading the records")
    with readable_folder(run, traces=html is not None or trace is not None) as folder:
        diagnosis, history, plan = _diagnosed(folder, str(run), say)
        if try_changes:
            tried = trials.try_changes(folder, diagnosis, history.start, plan, say)
            earlier = [each for each in diagnosis.tried if each.change not in {other.change for other in tried}]
            diagnosis = _with_trials(diagnosis, (*earlier, *tried))
            written = TriedChanges(plan=diagnosis.plan, changes=diagnosis.tried)
            replace_file(folder / TRIALS, [to_json(to_document(written)).encode()])
        if html is not None:
            say("writing the page")
            _write_page(Path(html), folder, diagnosis, history)
        if trace is not None:
            say("writing the trace")
            hosts = {rank.rank: rank.host for rank in history.ranks}
            write_trace(Path(trace), aligned_traces(folder, [*hosts]), hosts)
        return diagnosis


def _diagnosed(folder: Path, name: str, say: Say) -> tuple[Diagnosis, RunHistory, Plan]:
    """The diagnosis of a run, and what it is made from. `name`: of the run, for the reader."""
    history = replace(read_history(folder), folder=name)
    plan = _plan_of(folder, history)
    prediction, note = None, ""
    try:
        prediction = _prediction(folder, history, plan, say)
    except (OnecurveError, OSError) as error:
        note = f"nothing was predicted: {error}"
    in_progress = state_of(history, time.time(), is_alive(folder, history)) == "running"
    try:
        diagnosis = diagnose(history, plan, prediction, in_progress, note)
    except (ArithmeticError, LookupError, OnecurveError, ValueError) as error:  # of a job that has changed, for example
        if prediction is None:
            raise
        note = f"nothing was predicted: {type(error).__name__}: {error}"
        diagnosis = diagnose(history, plan, None, in_progress, note)
    return _with_trials(diagnosis, read_trials(folder, diagnosis.plan)), history, plan


def _with_trials(diagnosis: Diagnosis, tried: tuple[TriedChange, ...]) -> Diagnosis:
    """Leave out the findings whose change was tried and saved nothing."""
    refuted = {each.change for each in tried if each.is_refuted}
    findings = tuple(finding for finding in diagnosis.findings if finding.change not in refuted)
    return replace(diagnosis, tried=tried, findings=findings)


def _write_page(path: Path, folder: Path, diagnosis: Diagnosis, history: RunHistory) -> None:
    """Write the page, with the time line of the newest step that the first ranks have recorded."""
    shown = [rank.rank for rank in history.ranks[:_MAX_SHOWN_RANKS]]
    steps = {step: traces for step, traces in aligned_traces(folder, shown).items() if len(traces) == len(shown)}
    step = max(steps, default=0)
    path.write_text(run_page(diagnosis, history, steps.get(step, {}), step), encoding="utf-8")


def _plan_of(folder: Path, history: RunHistory) -> Plan:
    """The plan of the newest generation; the folder's has its stages and layouts too, if it is the same."""
    plan = Plan.parse(history.start.plan)
    path = folder / PLAN
    written = read_toml(Plan, path) if path.is_file() else plan
    return written if str(written) == str(plan) else plan


def _prediction(folder: Path, history: RunHistory, plan: Plan, say: Say) -> Prediction:
    origin = read_origin(folder)
    if origin is None or not Path(origin.script).is_file():
        script = origin.script if origin is not None else "unknown"
        raise OnecurveError(f"the run's script is not here ({script}); put it back, or correct it in {ORIGIN}")
    from onecurve.data.training_data import open_data
    from onecurve.device.device import local_cluster
    from onecurve.job.script import load_job
    from onecurve.params.row_timing import time_rows
    from onecurve.planner.clusters import this_host
    from onecurve.planner.planner import Planner
    from onecurve.verbs.probe import probe_this_host

    if local_cluster().device_kind != history.start.device:
        raise OnecurveError(
            f"the run was on {history.start.device}, and this machine has other devices; call why on a machine like "
            "that of the run"
        )
    job = load_job(Path(origin.script), origin.arguments)
    if job.manual_backward or job.async_workers:
        raise OnecurveError("a job with its own backward, or with asynchronous workers, is not planned")
    if history.start.global_batch != job.global_batch:
        raise OnecurveError(
            f"the run's script has changed: its global_batch is {job.global_batch}, that of the run was "
            f"{history.start.global_batch}; use the script as it was in the run"
        )
    data = open_data(job)
    cluster = _cluster_of(history, this_host(probe_this_host, say))
    planner = Planner(job, data, cluster, [plan.precision], say)
    planner.sample_tables(time_rows)
    planner.ignore_read_time()  # the run has measured how long it waits for data
    return Prediction(planner.estimator(), plan)


def _cluster_of(history: RunHistory, host: Cluster) -> Cluster:
    """The machines of the run: as many hosts as it has, each like this one.

    The link between them is not known here. What the run has measured will correct what is assumed.
    """
    group = replace(host.groups[0], count=history.hosts, inter_host=host.groups[0].intra_host)
    cores = history.start.host_cores
    if group.kind == "cpu" and 0 < cores < group.cores_per_host:
        splits = tuple(split for split in group.core_splits if split.threads <= cores)
        group = replace(group, devices_per_host=cores, cores_per_host=cores, core_splits=splits)
    return replace(host, groups=(group,))
