"""The command line: reads arguments, calls a verb, prints. Each verb is imported only when it is called."""

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape

import onecurve
from onecurve.describe.convert import to_json, to_plain


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 well, 1 failed, 2 wrongly asked, 130 interrupted."""
    chosen = _read(arguments)
    verb: Callable[[argparse.Namespace], int] = chosen.verb
    try:
        return verb(chosen)
    except KeyboardInterrupt:
        _complain("interrupted")
        return 130
    except BrokenPipeError:  # whoever read the output has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _report(error)


def _read(arguments: Sequence[str] | None) -> argparse.Namespace:
    """argparse takes words after flags for mistakes; `run train.py --ranks 2 lr=1e-4` is none."""
    parser = _parser()
    chosen, rest = parser.parse_known_args(arguments)
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

    summary = run(
        chosen.script,
        chosen.arguments,
        plan=chosen.plan,
        ranks=chosen.ranks,
        out=chosen.out,
        fresh=chosen.fresh,
        quiet=chosen.json,
        tensorboard=chosen.tensorboard,
        precision=chosen.precision.replace(" ", "").split(",") if chosen.precision else None,
        say=_tell_plainly if not chosen.json else lambda _: None,
    )
    if summary is not None:
        _say([to_json(summary)] if chosen.json else summary_lines(summary))
    return 0


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
    _say([to_json({"holds": result.holds, **to_plain(result)})] if chosen.json else result_lines(result))
    return 0 if result.holds else 1


def _probe(chosen: argparse.Namespace) -> int:
    from onecurve.report.cluster import cluster_lines
    from onecurve.verbs.probe import probe

    cluster = probe(chosen.out, quiet=chosen.json)
    if cluster is not None:
        _say([to_json(cluster)] if chosen.json else [*cluster_lines(cluster), f"written: {chosen.out}"])
    return 0


def _plan(chosen: argparse.Namespace) -> int:
    from onecurve.report.advice import advice_lines, advice_plain
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
    if chosen.json:
        _say([to_json(advice_plain(advice))])
    else:
        _say(advice_lines(advice))
        if advice.best is not None:
            _say(["", f"written: {chosen.out}; train with: onecurve run {chosen.script} --plan {chosen.out}"])
    return 0 if advice.best is not None else 1


def _export(chosen: argparse.Namespace) -> int:
    from onecurve.report.summary import export_lines
    from onecurve.verbs.export import export

    summary = export(chosen.run, chosen.to, out=chosen.out, best=chosen.best, script=chosen.script, quiet=chosen.json)
    _say([to_json(summary)] if chosen.json else export_lines(summary))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="onecurve", description="One loss curve, any cluster.", allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"onecurve {onecurve.__version__}")
    verbs = parser.add_subparsers(title="verbs", metavar="VERB", required=True)

    run = _add_verb(verbs, "run", _run, "train a job on the devices of this host")
    run.add_argument(
        "--plan",
        default="auto",
        help="how to split it: 'replicate2 mb8×2', or a plan.toml (default: what 'onecurve plan' finds best here)",
    )
    run.add_argument(
        "--ranks", type=int, metavar="N", help="processes to start, each with a copy (default: as planned)"
    )
    run.add_argument(
        "--precision",
        metavar="LIST",
        help="what a plan may compute in: fp32, or fp32,bf16 (default: fp32)",
    )
    run.add_argument(
        "--out", metavar="FOLDER", help="where checkpoints, records and weights go (default: runs/NAME of the script)"
    )
    run.add_argument(
        "--fresh", action="store_true", help="begin anew: without it a run goes on from its newest checkpoint"
    )
    run.add_argument(
        "--tensorboard", action="store_true", help="write TensorBoard events too (extra: onecurve[tensorboard])"
    )

    summary = "measure what these machines do: products, memory, links"
    probe = verbs.add_parser("probe", help=summary, description=_sentence(summary), allow_abbrev=False)
    probe.add_argument("--out", default="cluster.toml", metavar="FILE", help="where it goes (default: cluster.toml)")
    probe.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    probe.set_defaults(verb=_probe)

    plan = _add_verb(verbs, "plan", _plan, "how to split a job, how long it takes, how much, and why not otherwise")
    plan.add_argument(
        "--cluster",
        default="here",
        help="machines: 2x8xH100 (hosts × devices × name), 4xA100+4xV100, a cluster.toml, or here (the default)",
    )
    plan.add_argument(
        "--precision",
        default="fp32",
        metavar="LIST",
        help="what may be computed in: fp32, or fp32,bf16, … (default: fp32)",
    )
    plan.add_argument(
        "--price", type=float, metavar="DOLLARS", help="of one device for an hour; of a CPU host, all of it"
    )
    plan.add_argument("--out", default="plan.toml", metavar="FILE", help="where the plan goes (default: plan.toml)")

    check = _add_verb(verbs, "check", _check, "prove that the split job computes what one device computes")
    check.add_argument(
        "--plan",
        action="append",
        default=[],
        help="a plan to check, or a plan.toml; may be given again (default: a matrix)",
    )
    check.add_argument("--ranks", type=int, metavar="N", help="largest world of the matrix (default: 4)")
    check.add_argument("--steps", type=int, metavar="N", help="steps to compare (default: 4, in fp32 50)")
    check.add_argument(
        "--precision",
        choices=["fp64", "fp32"],
        default="fp64",
        help="fp64: every tensor; fp32: the loss curve, against the spread of perturbed runs",
    )
    _add_export(verbs)
    return parser


def _add_export(verbs: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    summary = "give the weights of a run to others"
    verb = verbs.add_parser("export", help=summary, description=_sentence(summary), allow_abbrev=False)
    verb.add_argument("run", help="folder of a run, for example runs/gpt")
    verb.add_argument(
        "--to",
        choices=["safetensors", "hf", "int8"],
        default="safetensors",
        help="one file, a Hugging Face folder, or a file of int8 weights (extra: onecurve[int8])",
    )
    verb.add_argument("--out", metavar="PATH", help="where it goes (default: into the run's folder)")
    verb.add_argument("--script", metavar="FILE", help="the run's script, which int8 needs")
    verb.add_argument("--best", action="store_true", help="of the best evaluation, not the newest")
    verb.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    verb.set_defaults(verb=_export)


def _sentence(summary: str) -> str:
    return summary[0].upper() + summary[1:] + "."


def _add_verb(
    verbs: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    action: Callable[[argparse.Namespace], int],
    summary: str,
) -> argparse.ArgumentParser:
    verb = verbs.add_parser(name, help=summary, description=_sentence(summary), allow_abbrev=False)
    verb.add_argument("script", help="Python file that defines job()")
    verb.add_argument("arguments", nargs="*", metavar="name=value", help="arguments of job(), for example lr=1e-4")
    verb.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    verb.set_defaults(verb=action)
    return verb


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(line, flush=True)


def _tell_plainly(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str], None]]:
    """What is being done, on a terminal while it is done, elsewhere not at all."""
    console = Console(stderr=True)
    if quiet or not console.is_terminal:
        yield lambda _: None
        return
    with console.status("") as status:
        yield lambda text: status.update(escape(text))


def _report(error: Exception) -> int:
    """What went wrong, for a person; under torchrun it is left for torchrun to show once."""
    from onecurve.verbs.rank import account_for

    text = account_for(error)
    if text is not None:
        _complain(text)
    return 1


def _complain(text: str) -> None:
    console = Console(stderr=True)
    console.show_cursor()  # a rank that was ended while it drew a bar could not do it
    console.print(f"[bold red]onecurve:[/bold red] {escape(text)}", highlight=False, soft_wrap=True)
