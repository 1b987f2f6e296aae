"""The command line: reads arguments, calls a verb, prints. Each verb is imported only when it is called."""

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

from rich.console import Console
from rich.markup import escape

import onecurve
from onecurve.describe.convert import to_document, to_json, to_plain
from onecurve.describe.errors import InterruptError, OnecurveError, full_text
from onecurve.report.log import log_to_stderr
from onecurve.report.text import print_lines

_INTERRUPTED = 130
"""What shells show for a command that Ctrl-C ended."""
_JSON_VERSION = 1
"""Version of `--json` output that is not also the content of a file."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit status.

    0: success, 1: failure, 2: wrong usage, 130: interrupted by Ctrl-C (SIGINT), 75: interrupted by SIGTERM or SIGHUP,
    which means "start me again"; the last two also if a run was stopped and saved.
    """
    chosen = _read(arguments)
    if chosen.verbose:
        log_to_stderr()
    verb: Callable[[argparse.Namespace], int] = chosen.verb
    try:
        return verb(chosen)
    except KeyboardInterrupt:
        _complain("interrupted")
        return _interrupted_status("SIGINT")
    except InterruptError as error:
        _complain(str(error))
        return _interrupted_status(error.signal)
    except BrokenPipeError:  # the reader of the output, such as `head`, has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # the outermost frame: every error becomes a message and an exit status
        return _report(error)


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the arguments. argparse refuses words after flags; `run train.py --ranks 2 lr=1e-4` is allowed here."""
    parser = _parser()
    words = list(sys.argv[1:] if arguments is None else arguments)
    chosen, rest = parser.parse_known_args(words, argparse.Namespace(words=words))
    unknown = [word for word in rest if word.startswith("-")]
    if unknown:
        parser.error(f"unknown flag {unknown[0]}; see 'onecurve --help' and the verb's own --help")
    if rest and not hasattr(chosen, "arguments"):
        parser.error(f"unknown word {rest[0]!r}; see the verb's own --help")
    if rest:
        chosen.arguments += rest
    return chosen


def _run(chosen: argparse.Namespace) -> int:
    from onecurve.report.summary import summary_lines
    from onecurve.verbs.run import run

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
        hosts=chosen.hosts,
        join=chosen.join,
        key_file=chosen.key_file,
        quiet=chosen.json,
        tensorboard=chosen.tensorboard,
        precision=chosen.precision.replace(" ", "").split(",") if chosen.precision else None,
        say=_print_to_stderr if not chosen.json else lambda _: None,
    )
    if summary is None:
        return 0
    _print_result(summary_lines(summary), to_document(summary) if chosen.json else None)
    return _interrupted_status(summary.ended) if summary.interrupted else 0


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


def _check(chosen: argparse.Namespace) -> int:
    from onecurve.report.check_table import result_lines
    from onecurve.verbs.check import check

    result = check(
        chosen.script,
        chosen.arguments,
        plans=chosen.plan,
        ranks=chosen.ranks,
        steps=chosen.steps,
        precision=chosen.precision,
        quiet=chosen.json,
    )
    if result is None:
        return 0
    plain = {"version": _JSON_VERSION, "holds": result.holds, **to_plain(result)}
    _print_result(result_lines(result), plain if chosen.json else None)
    return 0 if result.holds else 1


def _probe(chosen: argparse.Namespace) -> int:
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


def _plan(chosen: argparse.Namespace) -> int:
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


def _export(chosen: argparse.Namespace) -> int:
    from onecurve.report.summary import export_lines
    from onecurve.verbs.export import export

    summary = export(chosen.run, chosen.to, out=chosen.out, best=chosen.best, script=chosen.script, quiet=chosen.json)
    _print_result(export_lines(summary), to_document(summary) if chosen.json else None)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onecurve", description="One loss curve, any cluster.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"onecurve {onecurve.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)
    _add_run(verbs)
    _add_plan(verbs)
    _add_check(verbs)
    _add_probe(verbs)
    _add_export(verbs)
    return parser


Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_run(verbs: Verbs) -> None:
    run = _add_verb(verbs, "run", _run, "train a job on the devices of this host", job=True)
    run.add_argument(
        "--plan",
        default="auto",
        help="how to split the job: 'replicate2 mb8×2', or a plan.toml (default: the best plan that is found)",
    )
    run.add_argument("--ranks", type=int, metavar="N", help="replicate the model on N processes, without planning")
    run.add_argument(
        "--precision",
        metavar="LIST",
        help="precisions that a plan may compute in, such as fp32,bf16 (default: fp32)",
    )
    run.add_argument(
        "--out", metavar="FOLDER", help="folder for checkpoints, records and weights (default: runs/ + script name)"
    )
    run.add_argument(
        "--fresh", action="store_true", help="start over instead of continuing from the newest checkpoint in FOLDER"
    )
    run.add_argument(
        "--change",
        metavar="LIST",
        help="continue although these fields of the job have changed: lr, schedule, global_batch, steps",
    )
    run.add_argument(
        "--no-check",
        dest="check",
        action="store_false",
        help="train without proving first that the plan computes the same as one device",
    )
    _add_hosts(run)
    run.add_argument(
        "--slurm",
        metavar="OPTIONS",
        help="submit the run to Slurm with these options of sbatch, such as '--nodes=2 --time=1:00:00', and follow it",
    )
    run.add_argument(
        "--tensorboard", action="store_true", help="also write TensorBoard events (extra: onecurve[tensorboard])"
    )


def _add_hosts(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--hosts",
        metavar="N",
        help="number of hosts, or MIN:MAX; start the same command on each (default: 1, or what srun and mpirun say)",
    )
    verb.add_argument(
        "--join", metavar="WHERE", help="where hosts without a common folder meet: HOST:PORT, or etcd://HOST:PORT,…"
    )
    verb.add_argument(
        "--key-file", metavar="FILE", help="32 random bytes, the same on every host, for --join HOST:PORT"
    )


def _add_plan(verbs: Verbs) -> None:
    summary = "find the best way to split a job, with its time, memory and cost"
    plan = _add_verb(verbs, "plan", _plan, summary, job=True)
    plan.add_argument(
        "--cluster",
        default="here",
        help="the machines: 2x8xH100 (hosts × devices × name), 4xA100+4xV100, a cluster.toml, or here (default: here)",
    )
    plan.add_argument(
        "--precision",
        default="fp32",
        metavar="LIST",
        help="precisions that a plan may compute in, such as fp32,bf16 (default: fp32)",
    )
    plan.add_argument("--price", type=float, metavar="DOLLARS", help="price per device-hour (per host-hour on CPU)")
    plan.add_argument("--out", default="plan.toml", metavar="FILE", help="file for the plan (default: plan.toml)")


def _add_check(verbs: Verbs) -> None:
    summary = "prove that the split job computes the same as one device"
    check = _add_verb(verbs, "check", _check, summary, job=True)
    check.add_argument(
        "--plan",
        action="append",
        default=[],
        help="a plan to check, or a plan.toml; may be repeated (default: a matrix of plans)",
    )
    check.add_argument("--ranks", type=int, metavar="N", help="largest world of the matrix (default: 4)")
    check.add_argument("--steps", type=int, metavar="N", help="steps to compare (default: 4, in fp32 50)")
    check.add_argument(
        "--precision",
        choices=["fp64", "fp32"],
        default="fp64",
        help="fp64 compares every tensor; fp32 compares loss curves with the spread of perturbed runs (default: fp64)",
    )


def _add_probe(verbs: Verbs) -> None:
    probe = _add_verb(verbs, "probe", _probe, "measure these machines: matrix products, memory, links")
    probe.add_argument(
        "--out", default="cluster.toml", metavar="FILE", help="file for the result (default: cluster.toml)"
    )
    _add_hosts(probe)


def _add_export(verbs: Verbs) -> None:
    export = _add_verb(verbs, "export", _export, "write the weights of a run for other programs")
    export.add_argument("run", help="folder of a run, for example runs/gpt")
    export.add_argument(
        "--to",
        choices=["safetensors", "hf", "int8"],
        default="safetensors",
        help="one file, a Hugging Face folder, or a file of int8 weights (extra: onecurve[int8])",
    )
    export.add_argument("--out", metavar="PATH", help="file or folder to write (default: in the run's folder)")
    export.add_argument("--script", metavar="FILE", help="the run's script, which int8 needs")
    export.add_argument("--best", action="store_true", help="use the best evaluation's checkpoint, not the newest")


def _add_verb(
    verbs: Verbs, name: str, action: Callable[[argparse.Namespace], int], summary: str, *, job: bool = False
) -> argparse.ArgumentParser:
    """`job`: the verb takes a script that defines job(), and that function's arguments."""
    sentence = summary[0].upper() + summary[1:] + "."
    verb: argparse.ArgumentParser = verbs.add_parser(name, help=summary, description=sentence, allow_abbrev=False)
    if job:
        verb.add_argument("script", help="Python file that defines job()")
        verb.add_argument("arguments", nargs="*", metavar="name=value", help="arguments of job(), for example lr=1e-4")
    verb.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    verb.add_argument("--verbose", action="store_true", help="log details, such as why a model cannot be split")
    verb.set_defaults(verb=action)
    return verb


def _interrupted_status(name: str) -> int:
    return _INTERRUPTED if name == "SIGINT" else os.EX_TEMPFAIL


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


def _report(error: Exception) -> int:
    """Print an error for a person. Under torchrun it is left to torchrun, which shows it once."""
    from onecurve.verbs.rank import report_failure

    if not report_failure(error):
        _complain(full_text(error))
    return 1


def _complain(text: str) -> None:
    console = Console(stderr=True)
    console.show_cursor()  # a rank that was killed while it drew a progress bar could not do it
    console.print(f"[bold red]onecurve:[/bold red] {escape(text)}", highlight=False, soft_wrap=True)
