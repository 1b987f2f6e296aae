"""What mkdocs fills into pages: the commands, from the parser; public names, from their docstrings; the decisions."""

import argparse
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

COMMANDS, DECISIONS = "<!-- commands -->", "<!-- decisions -->"
NAMES = re.compile(r"<!-- names: (.*?) -->", re.DOTALL)
"""Public names, such as `Job loss.mse`; `Run(step save)` is a class with these methods."""


def on_page_markdown(markdown: str, config: Any, **_: Any) -> str:
    """Replace the marks of pages by what is generated."""
    if COMMANDS in markdown:
        markdown = markdown.replace(COMMANDS, commands_text())
    if DECISIONS in markdown:
        markdown = markdown.replace(DECISIONS, decisions_text(Path(config["docs_dir"]) / "decisions"))
    return NAMES.sub(lambda found: names_text(found[1]), markdown)


def commands_text() -> str:
    """A section per command, with its usage and its arguments."""
    from onecurve.cli.arguments import command_parser

    parser = command_parser()
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    sections = ["## onecurve", "", *_arguments(parser)]
    for name, verb in verbs.choices.items():
        sections += ["", f"## onecurve {name}", "", verb.description or "", "", *_usage(verb), "", *_arguments(verb)]
    return "\n".join(sections)


def names_text(names: str) -> str:
    """What mkdocstrings replaces by the reference of each name."""
    blocks = []
    for name, methods in re.findall(r"([\w.]+)(?:\((.*?)\))?", names):
        if name.startswith("onecurve."):  # a class of a result, which is not called by its name
            path, heading = name, name.rpartition(".")[2]
        else:
            path, heading = _home(name), f"oc.{name}"
        block = [f"::: {path}", "    options:", f'      heading: "{heading}"']
        members = methods.split() or str(name.startswith("onecurve.")).lower()
        blocks += [*block, f"      members: {members}", ""]
    return "\n".join(blocks)


def _home(name: str) -> str:
    """Where a public name is defined."""
    value: Any = import_module("onecurve")
    for part in name.split("."):
        value = getattr(value, part)
    return f"{value.__module__}.{value.__qualname__}"


def decisions_text(folder: Path) -> str:
    """A link per record."""
    lines = []
    for path in sorted(folder.glob("0*.md")):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"- [{title}]({path.name})")
    return "\n".join(lines)


def _usage(parser: argparse.ArgumentParser) -> list[str]:
    return ["```console", re.sub(r"^usage: ", "", parser.format_usage()).rstrip(), "```"]


def _arguments(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield "| argument | meaning |"
    yield "| --- | --- |"
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            continue
        names = [f"`{name}`" for name in action.option_strings] or [f"`{action.metavar or action.dest}`"]
        value = ""
        if action.option_strings and action.nargs != 0:
            value = f" `{action.metavar or '|'.join(action.choices or ()) or action.dest.upper()}`".replace("|", "\\|")
        yield f"| {', '.join(names)}{value} | {(action.help or '').replace('|', chr(92) + '|')} |"
