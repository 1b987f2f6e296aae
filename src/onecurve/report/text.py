"""Prints lines of text: wrapped between words on a terminal, and never wrapped in a file or pipe."""

import re
import shutil
import sys
import textwrap
from collections.abc import Iterable

from rich.console import Console

_COLUMN_START = re.compile(r"\S {2,}(?=\S)")
_MAX_INDENT_FRACTION = 0.5
"""Of the width; a line whose last column begins further right continues at the left."""


def print_lines(lines: Iterable[str]) -> None:
    """Print to stdout."""
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for line in lines:
        for part in wrapped(line, width):
            print(part, flush=True)


def print_markup(console: Console, markup: str) -> None:
    """Print a line with rich's markup."""
    console.print(markup, highlight=False, no_wrap=not console.is_terminal, overflow="ignore", crop=False)


def wrapped(line: str, width: int | None) -> list[str]:
    """Break a line between words, so that no part is wider than `width` unless it is one word; None does not break it.

    Columns of a table are two spaces or more apart. What does not fit continues under the last column.
    """
    if width is None or len(line) <= width:
        return [line]
    starts = [match.end() for match in _COLUMN_START.finditer(line)]
    indent = starts[-1] if starts and starts[-1] <= _MAX_INDENT_FRACTION * width else _leading_spaces(line) + 2
    return textwrap.wrap(line, width, subsequent_indent=" " * indent, break_long_words=False, break_on_hyphens=False)


def _leading_spaces(line: str) -> int:
    return len(line) - len(line.lstrip())
