"""Writes a script from the cells of a notebook: a job function, and what it uses.

Ranks are new processes, which cannot see the notebook. The script has the definitions of functions and classes as they
are in the cells, imports, and the present values of constants. Anything else that the job uses is refused: a script
that computed it again might compute something else.
"""

import ast
import builtins
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from onecurve.describe.errors import OnecurveError

FOLDER = Path(".onecurve")
"""Where scripts are written, in the notebook's folder."""


def notebook_cells() -> list[str] | None:
    """The source of all cells that were executed, oldest first; None if this is no notebook and no IPython."""
    cells = vars(sys.modules["__main__"]).get("In")
    return [cell for cell in cells if isinstance(cell, str)] if isinstance(cells, list) else None


def write_script(job: Any) -> Path:
    """Write the script of a job function, or of a Job that a cell assigns to a name; return its path."""
    cells = notebook_cells()
    assert cells is not None
    namespace = vars(sys.modules["__main__"])
    name = getattr(job, "__name__", None) or next((n for n, v in namespace.items() if v is job and n[:1] != "_"), None)
    if name is None or namespace.get(name) is not job:
        raise OnecurveError(
            "notebook: the job must be a function of a cell, or a Job that a cell assigns to a name: "
            "def job(): return onecurve.Job(…)"
        )
    text = script_text(name, cells, namespace)
    # Another text is another file: a run of another notebook, or of an earlier cell, can still be continued.
    path = FOLDER / hashlib.sha256(text.encode()).hexdigest()[:8] / f"{name}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def script_text(name: str, cells: Sequence[str], namespace: Mapping[str, Any]) -> str:
    """The script whose `job()` is the function `name`, or returns the Job of that name."""
    definitions = _definitions(cells)
    parts: dict[str, str] = {}
    order: dict[str, int] = {}
    pending = [name]
    while pending:
        used = pending.pop()
        if used in parts or (hasattr(builtins, used) and used not in namespace):
            continue
        text, needs, place = _source(used, definitions, namespace, is_job=used == name)
        parts[used], order[used] = text, place
        pending += needs
    for used in parts:
        _refuse_stale(used, definitions, order)
    lines = [parts[used] for used in sorted(parts, key=lambda used: order[used])]
    if isinstance(namespace[name], FunctionType) and name != "job":
        lines.append(f"job = {name}")
    return '"""Written from a notebook."""\n\n' + "\n\n".join(lines) + "\n"


Definition = tuple[int, ast.stmt, str]
"""Its place among all statements, the statement, and its source."""


def _definitions(cells: Sequence[str]) -> dict[str, Definition]:
    """The newest top-level statement that defines each name."""
    found: dict[str, Definition] = {}
    place = 0
    for cell in cells:
        try:
            tree = ast.parse(cell := _without_magic(cell))
        except SyntaxError:
            continue
        for statement in tree.body:
            place += 1
            source = ast.get_source_segment(cell, statement) or ""
            decorators = getattr(statement, "decorator_list", [])
            if decorators:  # the segment begins with def or class
                source = "\n".join(cell.splitlines()[decorators[0].lineno - 1 : statement.end_lineno])
            for name in _defined(statement):
                found[name] = (place, statement, source)
    return found


def _without_magic(cell: str) -> str:
    """Lines that only IPython understands become empty."""
    lines = cell.splitlines()
    return "\n".join("" if line.lstrip().startswith(("%", "!", "?")) or line.endswith("?") else line for line in lines)


def _defined(statement: ast.stmt) -> Iterator[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        yield from (target.id for target in targets if isinstance(target, ast.Name))


def _source(
    name: str, definitions: Mapping[str, Definition], namespace: Mapping[str, Any], is_job: bool
) -> tuple[str, list[str], int]:
    """The source of a name, the names that it needs, and its place."""
    if name not in namespace:
        raise OnecurveError(f"notebook: the job uses {name!r}, which is not defined")
    value, (place, statement, source) = namespace[name], definitions.get(name, (0, ast.Pass(), ""))
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return source, [], place
    if isinstance(value, ModuleType):
        return f"import {value.__name__} as {name}", [], place
    if isinstance(statement, ast.FunctionDef | ast.ClassDef) and getattr(value, "__module__", "") == "__main__":
        return source, _names_in(statement), place
    if is_job and isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
        body = ast.unparse(statement.value)
        return f"def job():\n    return {body}", _names_in(statement.value), place
    try:
        if ast.literal_eval(repr(value)) == value:
            return f"{name} = {value!r}", [], place
    except (ValueError, SyntaxError, TypeError):
        pass
    raise OnecurveError(
        f"notebook: the job uses {name!r}, an object of type {type(value).__name__}, which other processes cannot see; "
        "build it inside a function, or put the job into a file"
    )


def _refuse_stale(name: str, definitions: Mapping[str, Definition], order: Mapping[str, int]) -> None:
    """Refuse a definition that was executed with a value which has changed since: the script would use the new one."""
    if name not in definitions:
        return
    place, statement, _ = definitions[name]
    for needed in _names_when_defined(statement):
        if order.get(needed, 0) > place:
            raise OnecurveError(
                f"notebook: {needed!r} has changed since {name!r} was defined with it; execute the cell of {name!r} "
                "again"
            )


def _names_when_defined(statement: ast.stmt) -> Iterator[str]:
    """Names that are read when a function or class is defined: in defaults, decorators, bases and class bodies."""
    if isinstance(statement, ast.FunctionDef):
        defaults = [default for default in statement.args.kw_defaults if default is not None]
        for node in (*statement.decorator_list, *statement.args.defaults, *defaults):
            yield from _names_in(node)
    elif isinstance(statement, ast.ClassDef):
        for part in (*statement.decorator_list, *statement.bases, *statement.keywords):
            yield from _names_in(part)
        for inner in statement.body:
            is_definition = isinstance(inner, ast.FunctionDef | ast.ClassDef)
            yield from _names_when_defined(inner) if is_definition else _names_in(inner)


def _names_in(node: ast.AST) -> list[str]:
    """Names that are read inside and not only local: a name too many does no harm if it is a builtin or a local."""
    read = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load)}
    local = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    local |= {each.arg for each in ast.walk(node) if isinstance(each, ast.arg)}
    local |= {each.name for each in ast.walk(node) if isinstance(each, ast.FunctionDef | ast.ClassDef)}
    local |= {each.name for each in ast.walk(node) if isinstance(each, ast.ExceptHandler) and each.name}
    return sorted(read - local)
