"""Reads a page of the documentation: files that it shows, and commands with their output.

A fence with a `title` is a file. In a `console` fence, a line that begins with `$ ` is a command, and the lines after
it are its output, in which `…` stands for any text, and a line of `…` alone for any lines. If no line begins with
`$ `, every line is a command. A `python` fence without a title is a program. A comment `<!-- test: … -->` before a
fence says how it is run.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?P<options>[^\n]*)\n(?P<text>.*?)^(?P=indent)```", re.M | re.S
)
_NOTE = re.compile(r"<!-- test: ([^>]*) -->\s*\Z")
_TITLE = re.compile(r'title="([^"]+)"')


@dataclass(frozen=True)
class Fence:
    """A block of code of a page."""

    language: str
    title: str
    """Name of a file; empty if it is none."""
    text: str
    note: str
    """How it is run; empty: as usual."""
    line: int


@dataclass(frozen=True)
class Command:
    """A command of a console, and the output that the page shows."""

    text: str
    output: tuple[str, ...]


def fences(path: Path) -> Iterator[Fence]:
    """The blocks of a page, in their order."""
    page = path.read_text(encoding="utf-8")
    for found in _FENCE.finditer(page):
        note, title = _NOTE.search(page[: found.start()]), _TITLE.search(found["options"])
        indent = found["indent"]
        text = "".join(line.removeprefix(indent) for line in found["text"].splitlines(keepends=True))
        line = page.count("\n", 0, found.start()) + 1
        yield Fence(found["language"], title[1] if title else "", text, note[1] if note else "", line)


def commands(text: str) -> list[Command]:
    """The commands of a console block."""
    if "$ " not in {line[:2] for line in text.splitlines()}:
        return [Command(line, ()) for line in text.splitlines()]
    found: list[Command] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith("$ "):
            command = line[2:]
            while command.endswith("\\"):
                command = f"{command[:-1]}{next(lines).strip()}"
            found.append(Command(command, ()))
        elif found:
            found[-1] = Command(found[-1].text, (*found[-1].output, line))
    return found


def difference(expected: tuple[str, ...], output: str) -> str:
    """What of the expected output is missing; empty if it is all there, in its order, and nothing comes between."""
    if not expected:
        return ""
    lines = [r"(?:.*\n)*?" if line.strip() == "…" else _line_pattern(line) for line in expected]
    if re.fullmatch("".join(lines) + r"\n*", output.rstrip() + "\n"):
        return ""
    found = [
        line for line in expected if line.strip() != "…" and not re.search(f"^{_line_pattern(line)}", output, re.M)
    ]
    return "\n".join(found) or "the lines have another order, or there are others between them"


def _line_pattern(line: str) -> str:
    return ".*?".join(re.escape(part) for part in line.rstrip().split("…")) + r"[ \t]*\n"
