"""Finds the messages of all OnecurveErrors in the source: their first words, with … where a value stands."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "onecurve"
_WORDS = 6


def first_words() -> dict[str, list[str]]:
    """First words of a message → where it is raised, as `package/file.py:line`."""
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(SOURCE.rglob("*.py"))}
    errors = _error_classes(trees.values())
    found: dict[str, list[str]] = {}
    for path, tree in trees.items():
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in errors and call.args:
                for text in _texts(call.args[0], tree):
                    if words := shortened(text):
                        found.setdefault(words, []).append(f"{path.relative_to(SOURCE)}:{call.lineno}")
    return found


def shortened(text: str) -> str:
    """The first words; empty if values are all that is known of them."""
    words = " ".join(text.split()[:_WORDS]).rstrip(":;,.")
    return words if len(re.findall(r"[a-z]{2,}", words)) >= 2 else ""


def _error_classes(trees: object) -> set[str]:
    """OnecurveError and all classes that derive from it."""
    bases = {
        node.name: [base.id for base in node.bases if isinstance(base, ast.Name)]
        for tree in trees  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    known = {"OnecurveError"}
    while more := {name for name, parents in bases.items() if known.intersection(parents)} - known:
        known |= more
    return known


def _texts(node: ast.expr, module: ast.Module, depth: int = 3) -> Iterator[str]:
    """What a message can be, with … for values. Functions and variables of the same file are followed."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        parts = [value.value if isinstance(value, ast.Constant) else "…" for value in node.values]
        yield "".join(map(str, parts))
    elif isinstance(node, ast.IfExp):
        yield from _texts(node.body, module, depth)
        yield from _texts(node.orelse, module, depth)
    elif isinstance(node, ast.BoolOp):
        for value in node.values:
            yield from _texts(value, module, depth)
    elif isinstance(node, ast.BinOp):
        yield from (left + "…" for left in _texts(node.left, module, depth))
    elif depth and isinstance(node, ast.Call):
        for returned in _returned(_last_name(node.func), module):
            yield from _texts(returned, module, depth - 1)
    elif depth and isinstance(node, ast.Name):
        for assigned in _assigned(node.id, module):
            yield from _texts(assigned, module, depth - 1)


def _last_name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _returned(function: str, module: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == function:
            yield from (each.value for each in ast.walk(node) if isinstance(each, ast.Return) and each.value)


def _assigned(name: str, module: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(module):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                yield node.value
