"""The arguments of the command line."""

import argparse
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import TypeAlias

import onecurve
from onecurve.cli.commands import (
    check_command,
    completion_command,
    doctor_command,
    evaluate_command,
    export_command,
    index_command,
    plan_command,
    probe_command,
    run_command,
    serve_command,
    status_command,
    tune_command,
    version_command,
    why_command,
    work_command,
)
from onecurve.describe.units import parse_bytes


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    """Parse the words of a command. `run train.py --ranks 2 lr=1e-4` is allowed, although argparse refuses it."""
    if list(words) in (["--version", "--verbose"], ["--verbose", "--version"]):
        return argparse.Namespace(verb=version_command, verbose=False)
    parser = command_parser()
    chosen, rest = parser.parse_known_args(words, argparse.Namespace(words=words))
    unknown = [word for word in rest if word.startswith("-")]
    if unknown:
        parser.error(_unknown_flag(parser, words, unknown[0].partition("=")[0]))
    if rest and not hasattr(chosen, "arguments"):
        parser.error(f"unknown word {rest[0]!r}; see the --help of the command")
    if rest:
        chosen.arguments += rest
    return chosen


def _unknown_flag(parser: argparse.ArgumentParser, words: Sequence[str], flag: str) -> str:
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    name = next(word for word in words if word in verbs.choices)
    close = get_close_matches(flag, verbs.choices[name]._option_string_actions, n=1)
    hint = f" (did you mean {close[0]!r}?)" if close else ""
    return f"unknown flag {flag}{hint}; see 'onecurve {name} --help'. Arguments of job() have no dashes: name=value"


def command_parser() -> argparse.ArgumentParser:
    """The parser of all commands, from which the reference and the completion of shells are made too."""
    parser = argparse.ArgumentParser(prog="onecurve", description="One loss curve, any cluster.", allow_abbrev=False)
    parser.add_argument(
        "--version",
        action="version",
        version=f"onecurve {onecurve.__version__}",
        help="print the version; with --verbose also what a bug report needs",
    )
    verbs = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_run(verbs)
    _add_plan(verbs)
    _add_check(verbs)
    _add_probe(verbs)
    _add_status(verbs)
    _add_why(verbs)
    _add_tune(verbs)
    _add_evaluate(verbs)
    _add_export(verbs)
    _add_index(verbs)
    _add_serve(verbs)
    _add_doctor(verbs)
    _add_completion(verbs)
    _add_verb(verbs, "work", work_command, "compute steps of a run with mode='async' on this machine", job=True)
    return parser


Verbs: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def _add_run(verbs: Verbs) -> None:
    run = _add_verb(verbs, "run", run_command, "train a job on this host, or on several hosts", job=True)
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
        "--fresh",
        action="store_true",
        help="delete the earlier run in FOLDER (checkpoints, weights, records) and start over",
    )
    run.add_argument(
        "--change",
        metavar="LIST",
        help="continue although these fields of the job have changed: lr, schedule, global_batch, steps, data",
    )
    run.add_argument(
        "--no-check",
        dest="check",
        action="store_false",
        help="train without proving first that the plan computes the same as one device",
    )
    run.add_argument(
        "--audit",
        type=int,
        nargs="?",
        const=100,
        metavar="EVERY",
        help="compute one in EVERY steps a second time on another rank, and end the run if a gradient differs "
        "(without EVERY: 100, which takes about 1 %% of the time)",
    )
    _add_hosts(run)
    run.add_argument(
        "--slurm",
        metavar="OPTIONS",
        help="submit the run to Slurm with these options of sbatch, such as '--nodes=2 --time=1:00:00', and follow it",
    )
    run.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="also log to tensorboard, mlflow or wandb (extras of the same names); may be repeated",
    )
    run.add_argument(
        "--metrics", type=int, metavar="PORT", help="serve the newest values to Prometheus, on this host alone"
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
    plan = _add_verb(verbs, "plan", plan_command, summary, job=True)
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
    check = _add_verb(verbs, "check", check_command, summary, job=True)
    check.add_argument(
        "--plan",
        action="append",
        default=[],
        help="a plan to check, or a plan.toml; may be repeated (default: a matrix of plans)",
    )
    check.add_argument(
        "--ranks",
        type=int,
        metavar="N",
        help="largest number of ranks in the matrix of plans (default: 4, or the number of accelerators if smaller)",
    )
    check.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="steps to compare (default: 4, in fp32 50); in fp64 one more follows, from slightly moved weights",
    )
    check.add_argument(
        "--at",
        metavar="STEP",
        help="begin with the weights of the checkpoint of this step, or 'last', of a run, whose folder is the script",
    )
    check.add_argument(
        "--precision",
        choices=["fp64", "fp32"],
        default="fp64",
        help="fp64 compares every tensor; fp32 compares loss curves with the spread of perturbed runs (default: fp64)",
    )


def _add_probe(verbs: Verbs) -> None:
    probe = _add_verb(verbs, "probe", probe_command, "measure these machines: matrix products, memory, links")
    probe.add_argument(
        "--out", default="cluster.toml", metavar="FILE", help="file for the result (default: cluster.toml)"
    )
    _add_hosts(probe)


def _add_evaluate(verbs: Verbs) -> None:
    evaluate = _add_verb(verbs, "evaluate", evaluate_command, "evaluate a checkpoint of a run, on all ranks")
    evaluate.add_argument("run", help="folder of a run, for example runs/gpt")
    evaluate.add_argument(
        "arguments", nargs="*", metavar="name=value", help="arguments of job() to change from those of the run"
    )
    evaluate.add_argument("--best", action="store_true", help="the checkpoint of the best evaluation, not the newest")
    instead = evaluate.add_mutually_exclusive_group()
    instead.add_argument("--plan", metavar="PLAN", help="how to split the model (default: as in the run)")
    instead.add_argument(
        "--int8", action="store_true", help="compare with int8 weights, on one device: loss, size and speed"
    )


def _add_tune(verbs: Verbs) -> None:
    tune = _add_verb(verbs, "tune", tune_command, "search for the best arguments of a job", job=True)
    tune.add_argument("--trials", type=int, default=20, metavar="N", help="number of trials (default: 20)")
    tune.add_argument("--out", metavar="FOLDER", help="folder of the study (default: runs/tune- + script name)")
    instead = tune.add_mutually_exclusive_group()
    instead.add_argument(
        "--range-test",
        action="store_true",
        help="train once with a growing learning rate, and show the rate at which the loss falls fastest",
    )
    instead.add_argument(
        "--batch", action="store_true", help="train once, and suggest a global batch from the noise of the gradients"
    )


def _add_why(verbs: Verbs) -> None:
    why = _add_verb(verbs, "why", why_command, "say where the time of a run went, and what to change")
    why.add_argument("run", nargs="+", help="folder or URL of a run, for example runs/gpt; give two to compare them")
    why.add_argument("--html", metavar="FILE", help="write one page with charts, which needs no network")
    why.add_argument("--trace", metavar="FILE", help="write a trace of all ranks for Perfetto (ui.perfetto.dev)")
    why.add_argument(
        "--try",
        dest="try_changes",
        action="store_true",
        help="try the best one or two changes in 20 or more steps, and show measured next to predicted gains",
    )


def _add_status(verbs: Verbs) -> None:
    status = _add_verb(verbs, "status", status_command, "show how a run is doing")
    status.add_argument("run", nargs="?", help="folder of a run (default: list the runs here and below)")
    status.add_argument("--once", action="store_true", help="show it once, also if the run is in progress")


def _add_export(verbs: Verbs) -> None:
    export = _add_verb(verbs, "export", export_command, "write the weights of a run for other programs")
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


def _add_index(verbs: Verbs) -> None:
    index = _add_verb(verbs, "index", index_command, "write an index of data files: where each sample is")
    index.add_argument("paths", metavar="PATH", nargs="+", help="a folder, a file, a glob, or a URL that fsspec knows")
    index.add_argument("--out", metavar="FILE", help="file of the index (default: _onecurve.index in the folder)")
    index.add_argument("--processes", type=int, metavar="N", help="files read at the same time (default: one per core)")


def _add_serve(verbs: Verbs) -> None:
    serve = _add_verb(verbs, "serve", serve_command, "hold rows of embedding tables on this machine")
    serve.add_argument("address", metavar="ADDRESS", help="etcd://HOST:PORT,…/NAME, as in the job's params")
    serve.add_argument(
        "--listen",
        metavar="HOST",
        help="address at which ranks and other servers reach this server (default: the one from which etcd is reached)",
    )
    serve.add_argument(
        "--tls", metavar="FOLDER", help="folder with ca.pem, cert.pem and key.pem; needed between machines"
    )
    serve.add_argument("--memory", type=_bytes, metavar="SIZE", help="memory for rows, for example 64G; needs --spill")
    serve.add_argument("--spill", metavar="FOLDER", help="folder for rows that do not fit, on a fast disk")


def _add_doctor(verbs: Verbs) -> None:
    doctor = _add_verb(verbs, "doctor", doctor_command, "check whether these machines are ready to train")
    doctor.add_argument("--out", default="runs", metavar="FOLDER", help="folder in which runs will be (default: runs)")
    doctor.add_argument(
        "--hosts", type=int, default=1, metavar="N", help="number of hosts; start the same command on each (default: 1)"
    )
    doctor.add_argument("--join", metavar="WHERE", help="as in 'onecurve run': HOST:PORT, or etcd://HOST:PORT,…")


def _add_completion(verbs: Verbs) -> None:
    summary = "print a script with which a shell completes commands of onecurve (extra: onecurve[completion])"
    completion = _add_verb(verbs, "completion", completion_command, summary)
    completion.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="the shell")
    completion.set_defaults(parser=command_parser)


def _bytes(text: str) -> int:
    try:
        return parse_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
