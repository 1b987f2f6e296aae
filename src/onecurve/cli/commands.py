"""One function per verb: calls it with the arguments and prints what it returns. Verbs are imported when called."""

import argparse
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape

from onecurve.cli.exit_status import interrupted_status
from onecurve.describe.convert import to_document, to_json, to_plain
from onecurve.describe.errors import OnecurveError
from onecurve.report.text import print_lines

_REFRESH_SECONDS = 1.0
_JSON_VERSION = 1
"""Version of `--json` output that is not also the content of a file."""
_PIPE_WIDTH = 1000
"""Columns of a table that is not shown on a terminal."""


def run_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.summary import summary_lines
    from onecurve.verbs.command_start import note_command
    from onecurve.verbs.run import run

    note_command()
    if chosen.slurm is not None:
        return _submit(chosen)
    summary = run(
        chosen.script,
        chosen.arguments,
        plan=chosen.plan,
        ranks=chosen.ranks,
        out=chosen.out,
        fresh=chosen.fresh,
        change=chosen.change or (),
        check=chosen.check,
        audit=chosen.audit,
        hosts=chosen.hosts,
        join=chosen.join,
        key_file=chosen.key_file,
        quiet=chosen.json,
        track=",".join(chosen.track),
        metrics=chosen.metrics,
        precision=chosen.precision.replace(" ", "").split(",") if chosen.precision else None,
        say=_print_to_stderr if not chosen.json else lambda _: None,
    )
    if summary is None:
        return 0
    _print_result(summary_lines(summary), to_document(summary) if chosen.json else None)
    return interrupted_status(summary.ended) if summary.interrupted else 0


def serve_command(chosen: argparse.Namespace) -> int:
    from onecurve.verbs.serve import serve

    def say(where: str) -> None:
        end = "SIGTERM hands them over to other servers and ends this one; a second SIGTERM ends it at once"
        text = f"serving rows of {chosen.address} at {where}; {end}"
        print(to_json({"version": _JSON_VERSION, "serving": where}) if chosen.json else text, flush=True)

    if not chosen.json:
        _print_to_stderr("starting; the first server on a machine also compiles its code, which can take a minute")
    serve(
        chosen.address,
        listen=chosen.listen,
        tls=chosen.tls,
        memory=chosen.memory,
        spill=chosen.spill,
        on_ready=say,
    )
    return 0


def doctor_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.doctor import doctor_lines
    from onecurve.verbs.doctor import doctor

    say = _print_to_stderr if not chosen.json else lambda _: None
    checks = doctor(chosen.out, hosts=chosen.hosts, join=chosen.join, say=say)
    plain = {"version": _JSON_VERSION, "checks": [to_plain(check) for check in checks]}
    _print_result(doctor_lines(checks), plain if chosen.json else None)
    return int(any(check.state == "problem" for check in checks))


def version_command(_: argparse.Namespace) -> int:
    from onecurve.report.doctor import version_lines
    from onecurve.verbs.doctor import versions

    print_lines(version_lines(versions()))
    return 0


def completion_command(chosen: argparse.Namespace) -> int:
    try:
        from shtab import complete
    except ImportError:
        raise OnecurveError("completion: it needs shtab; run pip install 'onecurve[completion]'") from None
    print(complete(chosen.parser(), chosen.shell))
    return 0


def index_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.byte_progress import ByteProgress
    from onecurve.verbs.index import index

    if chosen.out is not None and len(chosen.paths) > 1:
        raise OnecurveError("index: --out names one file, but there are several paths; index them one by one")
    found = []
    for path in chosen.paths:
        with ByteProgress(path, Console(stderr=True, quiet=chosen.json)) as progress:
            indexed = index(path, out=chosen.out, processes=chosen.processes, progress=progress)
        found.append(to_plain(indexed))
        if not chosen.json:
            scanned = "all" if indexed.scanned == indexed.files else f"{indexed.scanned:,} of them"
            what = "tokens (bytes of raw .bin files)" if indexed.format == "tokens" else f"samples of {indexed.format}"
            print(
                f"{indexed.path}: {indexed.samples:,} {what} in {indexed.files:,} files, {scanned} new or changed",
                flush=True,
            )
    if chosen.json:
        print(to_json({"version": _JSON_VERSION, "indexed": found}), flush=True)
    return 0


def work_command(chosen: argparse.Namespace) -> int:
    from onecurve.verbs.work import work

    work(chosen.script, chosen.arguments, say=_print_to_stderr if not chosen.json else lambda _: None)
    return 0


def _submit(chosen: argparse.Namespace) -> int:
    from onecurve.verbs.submit import submit_run

    if chosen.hosts is not None:
        raise OnecurveError("--hosts: Slurm decides it; write --slurm '--nodes=N …'")
    ended_well = submit_run(
        chosen.slurm,
        chosen.script,
        chosen.out,
        _without("--slurm", chosen.words),
        say=_print_to_stderr,
        show=lambda text: print(text, end="", flush=True),
    )
    return 0 if ended_well else 1


def _without(option: str, words: Sequence[str]) -> list[str]:
    """The words without an option and its value."""
    left = [word for word in words if not word.startswith(f"{option}=")]
    if option in left:
        at = left.index(option)
        del left[at : at + 2]
    return left


def check_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.check_table import result_lines
    from onecurve.verbs.check import check

    result = check(
        chosen.script,
        chosen.arguments,
        plans=chosen.plan,
        ranks=chosen.ranks,
        steps=chosen.steps,
        precision=chosen.precision,
        at=chosen.at,
        quiet=chosen.json,
    )
    if result is None:
        return 0
    plain = {"version": _JSON_VERSION, "holds": result.holds, **to_plain(result)}
    _print_result(result_lines(result), plain if chosen.json else None)
    return 0 if result.holds else 1


def probe_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.cluster import cluster_lines
    from onecurve.verbs.probe import probe

    cluster = probe(
        chosen.out,
        hosts=chosen.hosts,
        join=chosen.join,
        key_file=chosen.key_file,
        quiet=chosen.json,
        say=_print_to_stderr if not chosen.json else lambda _: None,
    )
    if cluster is not None:
        lines = [*cluster_lines(cluster), f"written: {chosen.out}"]
        _print_result(lines, to_document(cluster) if chosen.json else None)
    return 0


def plan_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.advice import advice_lines, advice_plain, start_lines
    from onecurve.verbs.plan import plan

    with _progress(chosen.json) as say:
        advice = plan(
            chosen.script,
            chosen.arguments,
            cluster=chosen.cluster,
            precision=chosen.precision.replace(" ", "").split(","),
            price=chosen.price,
            out=chosen.out,
            say=say,
        )
    _print_result(advice_lines(advice), {"version": _JSON_VERSION, **advice_plain(advice)} if chosen.json else None)
    if advice.best is not None and not chosen.json:
        command = shlex.join(["run", chosen.script, *chosen.arguments, "--plan", chosen.out])
        # Not wrapped: a command with line breaks cannot be copied.
        print("", f"written: {chosen.out}", *start_lines(advice, command), sep="\n", flush=True)
    return 0 if advice.best is not None else 1


def status_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.status_view import runs_table, status_view
    from onecurve.verbs.status import runs_below, status

    console = Console()
    if chosen.run is None:
        runs = runs_below()
        if chosen.json:
            print(to_json({"version": _JSON_VERSION, "runs": runs}), flush=True)
        elif runs:
            # Files and pipes have no width: there the names of folders stay in one piece.
            (console if console.is_terminal else Console(width=_PIPE_WIDTH)).print(runs_table(runs))
        else:
            print("no runs in this folder or below it; give the folder of a run: onecurve status FOLDER", flush=True)
        return 0
    now = status(chosen.run)
    if chosen.json:
        print(to_json({"version": _JSON_VERSION, **to_plain(now)}), flush=True)
        return 0
    if not console.is_terminal or now.state != "running" or chosen.once:
        console.print(status_view(now))
        return 0
    # Ctrl-C leaves the view; the run goes on.
    with suppress(KeyboardInterrupt), Live(status_view(now), console=console, auto_refresh=False) as live:
        while now.state in ("running", "silent"):
            begin = time.monotonic()
            now = status(chosen.run)
            live.update(status_view(now), refresh=True)
            # Reading takes long for many ranks: it should not be all that this machine does.
            time.sleep(max(_REFRESH_SECONDS, 10 * (time.monotonic() - begin)))
    return 0


def why_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.why import comparison_lines, why_lines, why_plain
    from onecurve.verbs.why import why

    if len(chosen.run) > 2:
        raise OnecurveError(f"why: {len(chosen.run)} runs were given; give one, or two to compare")
    if len(chosen.run) == 2 and (chosen.html is not None or chosen.trace is not None or chosen.try_changes):
        raise OnecurveError("why: --html, --trace and --try are about one run; give one, not two")
    with _progress(chosen.json) as say:
        diagnoses = [
            why(run, html=chosen.html, trace=chosen.trace, try_changes=chosen.try_changes, say=say)
            for run in chosen.run
        ]
    if len(diagnoses) == 2:
        plain = {"version": _JSON_VERSION, "runs": [why_plain(diagnosis) for diagnosis in diagnoses]}
        _print_result(comparison_lines(*diagnoses), plain if chosen.json else None)
        return 0
    written = [f"written: {file}" for file in (chosen.html, chosen.trace) if file is not None]
    plain = {"version": _JSON_VERSION, **why_plain(diagnoses[0])}
    _print_result([*why_lines(diagnoses[0]), *written], plain if chosen.json else None)
    return 0


def evaluate_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.evaluation import evaluation_lines, int8_lines
    from onecurve.verbs.evaluate import evaluate

    if chosen.int8:
        from onecurve.verbs.int8 import evaluate_int8

        with _progress(chosen.json) as say:
            compared = evaluate_int8(chosen.run, chosen.arguments, best=chosen.best, say=say)
        plain = {"version": _JSON_VERSION, "int8": to_plain(compared)}
        _print_result(int8_lines(compared), plain if chosen.json else None)
        return 0
    with _progress(chosen.json) as say:
        found = evaluate(chosen.run, chosen.arguments, best=chosen.best, plan=chosen.plan, say=say)
    _print_result(evaluation_lines(found), {"version": _JSON_VERSION, **to_plain(found)} if chosen.json else None)
    return 0


def tune_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.tune import batch_lines, range_lines, tune_lines
    from onecurve.verbs.batch_test import batch_test
    from onecurve.verbs.range_test import range_test
    from onecurve.verbs.tune import tune

    say = _print_to_stderr if not chosen.json else lambda _: None
    if chosen.range_test:
        test = range_test(chosen.script, chosen.arguments, out=chosen.out, say=say)
        _print_result(range_lines(test), {"version": _JSON_VERSION, **to_plain(test)} if chosen.json else None)
        return 0
    if chosen.batch:
        found = batch_test(chosen.script, chosen.arguments, out=chosen.out, say=say)
        _print_result(batch_lines(found), {"version": _JSON_VERSION, **to_plain(found)} if chosen.json else None)
        return 0
    tuning = tune(chosen.script, chosen.arguments, trials=chosen.trials, out=chosen.out, say=say)
    plain = {**to_plain(tuning), "steps": tuning.steps}
    _print_result(tune_lines(tuning), {"version": _JSON_VERSION, **plain} if chosen.json else None)
    return 0


def export_command(chosen: argparse.Namespace) -> int:
    from onecurve.report.summary import export_lines
    from onecurve.verbs.export import export

    summary = export(chosen.run, chosen.to, out=chosen.out, best=chosen.best, script=chosen.script, quiet=chosen.json)
    _print_result(export_lines(summary), to_document(summary) if chosen.json else None)
    return 0


def _print_result(lines: Sequence[str], plain: dict[str, Any] | None) -> None:
    """Print the lines, or with --json the plain data instead."""
    if plain is not None:
        print(to_json(plain), flush=True)
    else:
        print_lines(lines)


def _print_to_stderr(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """On a terminal, show what is being done while it is done."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda text: status.update(escape(text))
