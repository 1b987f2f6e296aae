"""Every command of the README and of every tutorial runs from the page's own text, and prints what the page shows."""

import os
import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from harness import BENCHMARKS, EXAMPLES
from pages.page import Command, Fence, commands, difference, fences
from pages.shell import Shell

sys.path.insert(0, str(BENCHMARKS))
from namespaces import emulated_hosts
from slurm_cluster import slurm_cluster

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
_SLOW = re.compile(r"<!-- test: slow: (.+?) -->")
_TIMEOUT = 300.0


def pages() -> Iterator[object]:
    for path in (ROOT / "README.md", *sorted((*DOCS.glob("tutorials/*.md"), *DOCS.glob("migrate/*.md")))):
        name, text = str(path.relative_to(ROOT).with_suffix("")), path.read_text(encoding="utf-8")
        marks = [pytest.mark.slow] if _SLOW.search(text) else []
        if "on two hosts" in text or "with Slurm" in text:
            marks += [pytest.mark.hosts, pytest.mark.skipif(os.geteuid() != 0, reason="needs root")]
        yield pytest.param(path, id=name, marks=marks)


@pytest.mark.parametrize("page", list(pages()))
@pytest.mark.timeout(900)
def test_the_commands_of_a_page(page: Path, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__", "runs"))
    with ExitStack() as stack:
        shell = stack.enter_context(Shell(tmp_path))
        for fence in fences(page):
            is_other = page.parent.name == "migrate" and not (fence.title or fence.language == "console")
            if fence.note.startswith("shown only") or is_other:  # the code of another library
                continue
            where = f"{page.name}, line {fence.line}"
            if fence.title:
                (tmp_path / fence.title).write_text(fence.text, encoding="utf-8")
            elif fence.language == "python":
                run_and_compare(shell, Command(f"python - <<'PROGRAM'\n{fence.text}PROGRAM", ()), where)
            elif fence.language == "console":
                run_console(shell, fence, tmp_path, stack, where)


def run_console(shell: Shell, fence: Fence, folder: Path, stack: ExitStack, where: str) -> None:
    if fence.note == "with Slurm":
        stack.enter_context(slurm_cluster(folder / ".slurm"))
    for command in commands(fence.text):
        if "before.py" in command.text:
            continue  # the same with another library
        if fence.note == "on two hosts":
            run_on_hosts(command, folder, where)
        else:
            run_and_compare(shell, command, where, fails=fence.note == "fails")


def run_and_compare(shell: Shell, command: Command, where: str, fails: bool = False) -> None:
    output, status = shell.run(command.text, _TIMEOUT)
    compare(command, output, status, where, fails)


def compare(command: Command, output: str, status: int, where: str, fails: bool = False) -> None:
    assert (status == 0) != fails, f"{where}: {command.text}\nexit status {status}\n{output}"
    missing = difference(command.output, output)
    assert not missing, f"{where}: {command.text}\nthe page has\n{missing}\nbut the output is\n{output}"


def run_on_hosts(command: Command, folder: Path, where: str) -> None:
    """Start a command on two emulated hosts with a common folder; the output of the one that leads is compared."""
    with hosts_shells(folder) as shells:
        for shell in shells:
            shell.begin(command.text)
        ended = [shell.end(_TIMEOUT) for shell in shells]
    (leading, status), (other, other_status) = sorted(ended, key=lambda end: "joined the run" in end[0])
    assert other_status == status, f"{where}: on the other host\n{other}"
    compare(command, leading, status, where)


@contextmanager
def hosts_shells(folder: Path) -> Iterator[list[Shell]]:
    with emulated_hosts(2, "", [1.0, 1.0]) as hosts, ExitStack() as stack:
        yield [stack.enter_context(Shell(folder, tuple(host.command([])))) for host in hosts]
