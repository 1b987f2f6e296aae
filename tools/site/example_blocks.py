"""Shows the `Example::` of a docstring as a block of code."""

import re
import textwrap
from typing import Any

from griffe import Extension, Object

_EXAMPLE = re.compile(r"^Example::\n\n((?:    .*\n?|\n)+)", re.MULTILINE)


class ExampleBlocks(Extension):
    """Rewrites docstrings before they are parsed."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = with_code_blocks(obj.docstring.value)


def with_code_blocks(text: str) -> str:
    def block(found: re.Match[str]) -> str:
        return f"**Example**\n\n```python\n{textwrap.dedent(found[1]).strip()}\n```\n"

    return _EXAMPLE.sub(block, text)
