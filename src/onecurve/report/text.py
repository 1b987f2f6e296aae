"""Prints lines of text: wrapped between words on a terminal, and never wrapped in a file or pipe."""

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

_COLUMN_START = re.compile(r"\S {2,}(?=\S)")
_MAX_INDENT_FRACTION = 0.5
"""Part of the width; a last column that begins further right gets a line of its own."""


class RankConsole(Console):
    """The console of a rank. Training goes on when the reader of its output, such as `head`, has ended."""

    def on_broken_pipe(self) -> None:
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_lines(lines: Iterable[str]) -> None:
    """Print to stdout."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines:
        for part in wrapped(line, width):
            print(part, flush=True)


def print_markup(console: Console, markup: str) -> None:
    """Print a line with rich's markup. (rich itself breaks words, or cuts them off, where they do not fit.)"""
    text = Text.from_markup(markup)
    for part in text.divide(_breaks(text.plain, console.width)) if console.is_terminal else [text]:
        part.rstrip()
        console.print(part, no_wrap=True, overflow="ignore", crop=False)


def _breaks(line: str, width: int) -> list[int]:
    """The positions at which to break a line: after the last space that fits, or after a word that is too wide."""
    breaks = [0]
    while len(line) - breaks[-1] > width:
        space = line.rfind(" ", breaks[-1], breaks[-1] + width + 1)
        if space < 0:
            space = line.find(" ", breaks[-1] + width)
        if space < 0:
            break
        breaks.append(space + 1)
    return breaks[1:]


def wrapped(line: str, width: int | None) -> list[str]:
    """Break a line between words, so that no part is wider than `width` unless it is one word; None does not break it.

    Columns of a table are two spaces or more apart. What does not fit continues under the last column, or on a line of
    its own if that column begins far to the right.
    """
    if width is None or len(line) <= width:
        return [line]
    indent = len(line) - len(line.lstrip()) + 2
    start = max((match.end() for match in _COLUMN_START.finditer(line)), default=indent)
    if start > _MAX_INDENT_FRACTION * width and start > indent:
        return [*wrapped(line[:start].rstrip(), width), *wrapped(" " * indent + line[start:], width)]
    return textwrap.wrap(line, width, subsequent_indent=" " * start, break_long_words=False, break_on_hyphens=False)
