"""The reader of pages."""

import pytest

from pages.page import commands, difference, fences

PAGE = """
<!-- test: fails -->
Text.

```python title="train.py"
a = 1
```

<!-- test: on two hosts -->
```console
$ onecurve run \\
    train.py
first
…
last … line
$ true
```

    ```python
    print(1)
    ```
"""


def test_files_commands_and_programs(tmp_path) -> None:
    path = tmp_path / "page.md"
    path.write_text(PAGE)
    file, console, program = fences(path)
    assert (file.title, file.text, file.line) == ("train.py", "a = 1\n", 5)
    assert console.note == "on two hosts"
    first, second = commands(console.text)
    assert first.text == "onecurve run train.py"
    assert first.output == ("first", "…", "last … line")
    assert (second.text, second.output) == ("true", ())
    assert program.text == "print(1)\n"


def test_without_a_prompt_every_line_is_a_command() -> None:
    assert [command.text for command in commands("onecurve run a.py\ntrue\n")] == ["onecurve run a.py", "true"]


@pytest.mark.parametrize(
    ("output", "equal"),
    [
        ("first\nlast 3 line\n", True),
        ("first\n1\n2\nlast  line\n\n", True),
        ("first\nlast 3 lines\n", False),
        ("last 3 line\nfirst\n", False),
        ("0\nfirst\nlast 3 line\n", False),
        ("first\nlast 3 line\nmore\n", False),
    ],
)
def test_output_is_compared_line_by_line(output: str, equal: bool) -> None:
    assert (difference(("first", "…", "last … line"), output) == "") is equal
