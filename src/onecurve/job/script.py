"""The user's script: import it, call its `job()` with the arguments of the command line."""

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

from onecurve.describe.convert import from_plain, nearest
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.job import Job


def load_job(path: Path, arguments: Sequence[str] = ()) -> Job:
    """`load_job(Path("train.py"), ["lr=1e-4"])`"""
    function = _job_function(_import(path), path)
    chosen = read_arguments(function, arguments, str(path))
    try:
        job = function(**chosen)
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"{path}: job() raised {type(error).__name__}: {error}") from error
    if not isinstance(job, Job):
        raise OnecurveError(f"{path}: job() returned {type(job).__name__}; it must return an onecurve.Job")
    return job


def read_arguments(function: Callable[..., Any], arguments: Sequence[str], where: str) -> dict[str, Any]:
    """Turn `name=value` words into the function's arguments, typed by its annotations or defaults."""
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    chosen: dict[str, Any] = {}
    for word in arguments:
        name, equals, value = word.partition("=")
        if not equals:
            raise OnecurveError(
                f"{where}: cannot read the argument {word!r}; arguments of job() are written name=value"
            )
        if name not in parameters:
            raise OnecurveError(f"{where}: job() has no argument {name!r} ({nearest(name, parameters)})")
        default = parameters[name].default
        kind = hints.get(name, str if default in (inspect.Parameter.empty, None) else type(default))
        try:
            chosen[name] = from_plain(kind, value, name, lax=True)
        except OnecurveError:
            wanted = getattr(kind, "__name__", str(kind))
            raise OnecurveError(f"{where}: argument {word!r}: {value!r} cannot be read as {wanted}") from None
    needed = [
        n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    missing = [name for name in needed if name not in chosen]
    if missing:
        raise OnecurveError(f"{where}: job() needs {missing[0]!r}; add {missing[0]}=… after the script's name")
    return chosen


def _import(path: Path) -> ModuleType:
    if not path.is_file():
        hint = "it is a folder" if path.is_dir() else "no such file"
        raise OnecurveError(f"{path}: {hint}; give the Python file that defines job()")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise OnecurveError(f"{path}: not a Python file")
    module = importlib.util.module_from_spec(spec)
    # As `python train.py` would: neighbours can be imported, and what the script defines can be found again by name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"{path}: importing it raised {type(error).__name__}: {error}") from error
    return module


def _job_function(module: ModuleType, path: Path) -> Callable[..., Any]:
    function = getattr(module, "job", None)
    if function is None:
        raise OnecurveError(
            f"{path}: no function 'job' in it; add\n\n    def job() -> onecurve.Job:\n        return onecurve.Job(…)\n"
        )
    if not callable(function):
        raise OnecurveError(
            f"{path}: 'job' is a {type(function).__name__}; it must be a function that returns an onecurve.Job"
        )
    return function  # type: ignore[no-any-return]
