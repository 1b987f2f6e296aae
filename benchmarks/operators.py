"""Mutation testing of the packages that compute without a model: `python benchmarks/operators.py --count 100 --json`.

Each mutant changes one operator, comparison, integer, index, boolean, sign or min/max call in a copy of a file of
`TESTED_BY`, and runs the unit tests that concern the file against the copy. A mutant that every test accepts is a
survivor: either a test is missing, or the change has no effect. Changes that are known to have none are listed in
`EQUIVALENT` with the reason, and are not drawn. The choice of mutants depends only on the seed and the source, and
hypothesis draws the same examples every time, so a run can be repeated. The checkout is never changed: source and
tests are copied to a temporary directory first, and all mutants are forked from one process that has already imported
torch and pytest.

Not mutated: type annotations, `raise` statements (their text is all they compute), `strict=` of zip, and `frozen=` and
`kw_only=` of dataclasses.
"""

import argparse
import ast
import copy
import json
import math
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.progress import Progress

ROOT = Path(__file__).parent.parent
TESTED_BY = {
    "describe": ("describe", "estimate", "search"),
    "estimate": ("estimate", "search"),
    "search": ("search",),
    "diagnose": ("diagnose", "report/test_status_view.py"),
    "study": ("study",),
    "runs": ("runs",),
    "data": ("data",),
    "hosts": ("hosts",),
}
"""Package → the directories and files of tests/unit that test it, in the order in which they run."""
FILES = {"hosts": ("decision.py", "generation_end.py", "recovery.py", "slurm.py", "stalls.py")}
"""The files of a package that are mutated; of the others that talk to processes, only a multi-process test can say."""
_GUESS = "bisect(self._times, time_at_limit)"
EQUIVALENT = {
    ("data/value_mark.py", "2 * _SUMMED + 1", "2 * _SUMMED + 2"): "the last of these numbers is never read",
    ("data/stream.py", "offset > self.taken", "offset >= self.taken"): "at the same offset no sample is skipped",
    ("search/space.py", "ranks - 1", "ranks - 2"): "also zero for powers of two only; 1 divides everything",
    ("search/space.py", "degree <= largest", "degree < largest"): "the largest degree is added in any case",
    ("search/reason.py", "slower > -AS_FAST", "slower >= -AS_FAST"): "no ratio of two floats minus 1 is this float",
    ("search/reason.py", "slower < AS_FAST", "slower <= AS_FAST"): "no ratio of two floats minus 1 is this float",
    ("describe/arithmetic.py", "x <= right", "x < right"): "both lines have the same value where they meet",
    **{
        ("search/stage_balance.py", f"{_GUESS} - 1", f"{_GUESS} {other}"): "two loops correct any first guess"
        for other in ("+ 1", "- 2")
    },
}
"""(file, before, after) → why no test can tell the change from the original."""
SWAPS: dict[type[ast.AST], type[ast.AST]] = {ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult, ast.Pow: ast.Mult}
for one, other in (
    (ast.Add, ast.Sub),
    (ast.Mult, ast.Div),
    (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE),
    (ast.Eq, ast.NotEq),
    (ast.Is, ast.IsNot),
    (ast.In, ast.NotIn),
    (ast.And, ast.Or),
):
    SWAPS |= {one: other, other: one}
_NOT_TIMED = "not do_not_stall_the_training and not in_under_a_millisecond"
"""Tests of times are left out: on a busy machine they would fail, and a mutant would seem to be caught."""
_PROCESSES = 2
_CPU_SECONDS = 240
"""Processor time of one mutant: it ends endless loops, and does not depend on what else the machine does."""
_TIMEOUT_SECONDS = 1200
_MEMORY_BYTES = 8 << 30
"""Address space of one mutant: an endless loop must not use up the memory of the machine."""


@dataclass(frozen=True)
class Mutant:
    file: str
    """Path below src/onecurve."""
    line: int
    before: str
    after: str
    source: str
    """Text of the whole changed file."""


def changes(node: ast.AST) -> Iterator[tuple[Any, Any, ast.AST]]:
    """Yield all changes below a node in a fixed order: `container[key] = variant` applies one."""
    for attribute, value in ast.iter_fields(node):
        if attribute in ("annotation", "returns"):
            continue
        container = value if isinstance(value, list) else vars(node)
        for key, child in list(enumerate(value)) if isinstance(value, list) else [(attribute, value)]:
            match child:
                case ast.Raise() | ast.keyword(arg="strict" | "frozen" | "kw_only", value=ast.Constant()):
                    continue
                case ast.AST():
                    yield from ((container, key, variant) for variant in variants(child))
                    yield from changes(child)


def variants(node: Any) -> Iterator[ast.AST]:
    """Yield the node with one operator or operand changed."""
    match node:
        case ast.BinOp() | ast.AugAssign() | ast.BoolOp() if type(node.op) in SWAPS:
            yield _with(node, op=SWAPS[type(node.op)]())
        case ast.Compare():
            for index, operator in enumerate(node.ops):
                if type(operator) in SWAPS:
                    yield _with(node, ops=_replaced(node.ops, index, SWAPS[type(operator)]()))
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Call(func=ast.Name(id="min" | "max" as function)):
            yield _with(node, func=ast.Name("max" if function == "min" else "min", ast.Load()))
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
    if type(node) in (ast.BinOp, ast.AugAssign, ast.Compare, ast.Subscript, ast.Slice):
        for name, value in ast.iter_fields(node):
            for index, operand in enumerate(value if isinstance(value, list) else [value]):
                if isinstance(operand, ast.Constant) and type(operand.value) is int:
                    larger = ast.Constant(operand.value + 1)
                    yield _with(node, **{name: _replaced(value, index, larger) if isinstance(value, list) else larger})


def _with(node: ast.AST, **attributes: Any) -> ast.AST:
    changed = copy.copy(node)
    for name, value in attributes.items():
        setattr(changed, name, value)
    return changed


def _replaced(items: Sequence[Any], index: int, item: Any) -> list[Any]:
    return [*items[:index], item, *items[index + 1 :]]


def choose(package: Path, count: int, seed: int) -> list[Mutant]:
    """Return `count` different mutants of the tested packages, drawn with equal probability."""
    files = [
        path
        for name in TESTED_BY
        for path in sorted((package / name).glob("*.py"))
        if name not in FILES or path.name in FILES[name]
    ]
    sites = [(path, number) for path in files for number, _ in enumerate(changes(ast.parse(path.read_text())))]
    random.Random(seed).shuffle(sites)
    drawn = (mutate(path, number, str(path.relative_to(package))) for path, number in sites)
    return list(islice((mutant for mutant in drawn if not is_equivalent(mutant)), count))


def is_equivalent(mutant: Mutant) -> bool:
    return (mutant.file, mutant.before, mutant.after) in EQUIVALENT


def mutate(path: Path, number: int, name: str) -> Mutant:
    tree = ast.parse(path.read_text())
    container, key, after = list(changes(tree))[number]
    before, container[key] = container[key], after
    return Mutant(name, before.lineno, ast.unparse(before), ast.unparse(after), ast.unparse(tree))


class Trials:
    """Runs unit tests in forked processes, on a copy of the checkout."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("src", "tests", "benchmarks"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        self.package = folder / "src" / "onecurve"
        self._silence = os.open(os.devnull, os.O_WRONLY)

    def check_unchanged(self) -> None:
        """Stop if a test fails without any mutation."""
        names = dict.fromkeys(name for names in TESTED_BY.values() for name in names)
        tests, log = [self._folder / "tests" / "unit" / name for name in names], self._folder / "unchanged.txt"
        with log.open("w") as output:
            _, status = os.waitpid(self._fork(self.package.parent, [tests], output.fileno()), 0)
        if status:
            raise SystemExit(f"{log.read_text()}\nunit tests fail without any mutation; make them pass first")

    def caught(self, mutants: Sequence[Mutant], seconds: float) -> Iterator[tuple[Mutant, bool]]:
        """Yield each mutant when its tests end, with True if one of them failed or took too long.

        None is started after `seconds`."""
        began = time.monotonic()
        waiting, running = list(enumerate(mutants)), dict[int, tuple[Mutant, Path, float]]()
        try:
            while waiting or running:
                if time.monotonic() - began > seconds:
                    waiting.clear()
                while waiting and len(running) < _PROCESSES:
                    number, mutant = waiting.pop(0)
                    path = self._folder / f"mutant-{number}"
                    running[self._start(mutant, path)] = mutant, path, time.monotonic() + _TIMEOUT_SECONDS
                for child, (mutant, path, deadline) in list(running.items()):
                    if time.monotonic() > deadline:
                        os.killpg(child, signal.SIGKILL)
                    ended, status = os.waitpid(child, os.WNOHANG)
                    if ended:
                        del running[child]
                        shutil.rmtree(path)
                        yield mutant, status != 0
                time.sleep(0.02)
        finally:
            for child in running:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)

    def _start(self, mutant: Mutant, path: Path) -> int:
        package, module = mutant.file.split("/")
        (path / "onecurve").mkdir(parents=True)
        for each in self.package.iterdir():
            if each.name != package:
                (path / "onecurve" / each.name).symlink_to(each)
        shutil.copytree(self.package / package, path / "onecurve" / package)
        (path / "onecurve" / mutant.file).write_text(mutant.source)
        own, *others = [test_files(self._folder / "tests" / "unit" / name) for name in TESTED_BY[package]]
        first = [test for test in own if test.name == f"test_{module}"]
        batches = [first, [test for test in own if test not in first], *others]
        return self._fork(path, batches, self._silence)

    def _fork(self, source: Path, batches: Sequence[Sequence[Path]], output: int) -> int:
        """Start a process that runs batches of test files until one fails. Its exit code is 0 if all of them pass."""
        child = os.fork()
        if child:
            return child
        code = 1
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
            os.dup2(output, 1)
            os.dup2(output, 2)
            os.chdir(self._folder)
            sys.path.insert(0, str(source))
            os.environ["PYTHONPATH"] = str(source)  # for processes that a test starts
            sys.dont_write_bytecode = False  # only in the copy: the next mutants compile less
            options = [
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                "-m",
                "not slow",
                "-k",
                _NOT_TIMED,
                "--hypothesis-profile=ci",
            ]
            codes = (int(pytest.main([*options, *map(str, batch)])) for batch in batches if batch)
            code = next(filter(None, codes), 0)
        finally:
            os._exit(code)


def test_files(path: Path) -> list[Path]:
    return [path] if path.is_file() else sorted(path.glob("test_*.py"))


@contextmanager
def progress(total: int, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of survivors after each mutant: a bar in a terminal, lines elsewhere."""
    console = Console(stderr=True, quiet=quiet)
    with Progress(console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("mutants", total=total)

        def advance(survivors: int) -> None:
            bar.update(task, advance=1, description=f"{survivors} survived")
            done = int(bar.tasks[0].completed)
            if not console.is_terminal and (done % 10 == 0 or done == total):
                console.print(f"{done} of {total} mutants, {survivors} survived")

        yield advance


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="number of mutants")
    parser.add_argument("--seed", type=int, default=0, help="chooses the mutants")
    parser.add_argument("--seconds", type=float, default=math.inf, help="start no further mutants after this time")
    parser.add_argument("--at-least", type=int, default=0, help="exit with 1 if fewer are caught")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads must not fork
    for name in ("hypothesis", "msgspec", "numpy", "tomli_w", "torch.utils.data"):
        import_module(name)
    survivors: list[Mutant] = []
    tried = 0
    with tempfile.TemporaryDirectory() as folder:
        trials = Trials(Path(folder))
        trials.check_unchanged()
        mutants = choose(trials.package, arguments.count, arguments.seed)
        with progress(len(mutants), quiet=arguments.json) as advance:
            for mutant, caught in trials.caught(mutants, arguments.seconds):
                tried += 1
                survivors += [] if caught else [mutant]
                advance(len(survivors))
    survivors.sort(key=lambda mutant: (mutant.file, mutant.line, mutant.after))
    caught_count = tried - len(survivors)
    if arguments.json:
        keys = ("file", "line", "before", "after")
        listed = [{key: getattr(mutant, key) for key in keys} for mutant in survivors]
        print(json.dumps({"caught": caught_count, "of": tried, "survivors": listed}))
    else:
        print(f"{caught_count} of {tried} mutants caught")
        for mutant in survivors:
            print(f"  {mutant.file}:{mutant.line}  {mutant.before}  →  {mutant.after}")
    sys.exit(caught_count < arguments.at_least)


if __name__ == "__main__":
    main()
