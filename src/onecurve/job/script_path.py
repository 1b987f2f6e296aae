"""The path of the user's script. This module does not import torch."""

import ast
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from onecurve.describe.errors import OnecurveError
from onecurve.job.notebook import notebook_cells, write_script

if TYPE_CHECKING:
    from onecurve.job.job import Job

Script: TypeAlias = "str | Path | Job | Callable[..., Job]"
"""The Python file that defines job(), or that function itself; in a notebook also a Job that a cell assigns."""

importing: list[Path] = []
"""Scripts that are being imported."""


def script_path(script: Script, verb: str) -> Path:
    """Return the path of a job's script. `verb` is what the caller does with it, for messages.

    The ranks are new processes: they import a file and call its job(). So a function is accepted if it is what they
    will find, the function `job` of a file's module.
    """
    if importing:
        raise OnecurveError(
            f"{importing[-1]}: it calls onecurve.{verb} while it is imported, which every rank does; put the call "
            "under if __name__ == '__main__':"
        )
    path = Path(script) if isinstance(script, str | Path) else _file_of(script)
    if path is None and notebook_cells() is not None and _is_of_notebook(script):
        path = write_script(script)
    if path is None:
        name = getattr(script, "__qualname__", None)
        given = f"the function {name!r}" if name else f"an object of type {type(script).__name__}"
        raise OnecurveError(
            f"{verb}: got {given}; ranks are new processes that import a file, so give the path of the Python file "
            "that defines job(), or a function named 'job' at the top level of a file or in a cell of a notebook"
        )
    refuse_missing(path)
    return path


def has_own_loop(path: Path) -> bool:
    """True if a script defines no function `job`, and calls `prepare`: it is a program with its own training loop.

    A `job` that it imports is what the loop trains. The script is not executed.
    """
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # its import says why
        return False
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    prepares = any("prepare" in (getattr(call, "attr", ""), getattr(call, "id", "")) for call in calls)
    return prepares and not any(isinstance(node, ast.FunctionDef) and node.name == "job" for node in tree.body)


def refuse_missing(path: Path) -> None:
    """Refuse a path that is not a file."""
    if not path.is_file():
        problem = "it is a folder" if path.is_dir() else "no such file"
        raise OnecurveError(f"{path}: {problem}; give the Python file that defines job()")


def _is_of_notebook(job: object) -> bool:
    """True for a function of a cell, and for a Job."""
    return getattr(job, "__module__", "") == "__main__" or type(job).__module__ == "onecurve.job.job"


def _file_of(function: object) -> Path | None:
    """The file whose `job` is this function, or None if there is none, as for a nested function or in a notebook."""
    module = sys.modules.get(getattr(function, "__module__", ""))
    file = getattr(module, "__file__", None)
    is_job = callable(function) and getattr(module, "job", None) is function
    return Path(file) if is_job and file is not None and Path(file).is_file() else None
