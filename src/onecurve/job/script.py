"""Loads the user's script and calls its `job()` function with arguments from the command line."""

import importlib.util
import inspect
import logging
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, get_type_hints

from onecurve.describe.convert import from_plain, nearest
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.seed import mix
from onecurve.device.rng import seeded
from onecurve.job.job import Job
from onecurve.job.script_path import importing, refuse_missing

SCRIPT_SEED, _JOB_SEED = mix(0, 1), mix(0, 2)
"""Seed the import of a script, and its `job()`: the job's own seed is not known before."""
_preloaded: dict[Path, ModuleType] = {}

_log = logging.getLogger(__name__)

_UNKNOWN_FIELD = re.compile(r"Job\.__init__\(\) got an unexpected keyword argument '(\w+)'")
_OTHER_NAMES = {"batch_size": "global_batch", "criterion": "loss", "max_grad_norm": "clip", "gradient_clipping": "clip"}
"""Fields of a Job as other libraries call them, where the names are not similar."""


def load_job(path: Path, arguments: Sequence[str] = ()) -> Job:
    """Import the script and return what its `job()` returns: `load_job(Path("train.py"), ["lr=1e-4"])`."""
    function = _job_function(_preloaded.get(path) or _import(path), path)
    kwargs = read_arguments(function, arguments, str(path))
    try:
        with seeded(_JOB_SEED):
            job = function(**kwargs)
    except OnecurveError:
        raise
    except Exception as error:
        text = f"{path}: job() raised {type(error).__name__}: {error}"
        if unknown := _UNKNOWN_FIELD.match(str(error)):
            known = [field.name for field in fields(Job)]
            text += f"; {nearest(_OTHER_NAMES.get(unknown[1], unknown[1]), known)}"
        if _speaks_of_ranks(error):
            text += "; take out what belongs to torch.distributed: onecurve starts the ranks, and a job has no rank"
        raise UserCodeError(text) from error
    if not isinstance(job, Job):
        hint = "; is the return missing?" if job is None else ""
        raise OnecurveError(f"{path}: job() must return a onecurve.Job, got {type(job).__name__}{hint}")
    return job


def preload_script(path: Path) -> None:
    """Import a script now, for a `load_job` in this process or in one that is forked from it.

    If that fails, `load_job` imports it again and reports the error.
    """
    try:
        _preloaded[path] = _import(path)
    except OnecurveError:
        _log.info("%s cannot be imported beforehand", path, exc_info=True)


def read_arguments(function: Callable[..., Any], arguments: Sequence[str], where: str) -> dict[str, Any]:
    """Parse `name=value` strings into keyword arguments of the function.

    A value's type comes from the parameter's annotation, or else from its default; `where` names the script in errors.
    """
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function)
    kwargs: dict[str, Any] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not equals:
            raise OnecurveError(
                f"{where}: cannot read the argument {argument!r}; write arguments of job() as name=value"
            )
        if name not in parameters:
            raise OnecurveError(f"{where}: job() has no argument {name!r} ({nearest(name, parameters)})")
        default = parameters[name].default
        kind = hints.get(name, str if default in (inspect.Parameter.empty, None) else type(default))
        try:
            kwargs[name] = from_plain(kind, value, name, lax=True)
        except OnecurveError:
            expected = getattr(kind, "__name__", str(kind))
            raise OnecurveError(f"{where}: argument {argument!r}: {value!r} cannot be read as {expected}") from None
    required = [
        n for n, p in parameters.items() if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    missing = [name for name in required if name not in kwargs]
    if missing:
        raise OnecurveError(
            f"{where}: job() requires the argument {missing[0]!r}; add {missing[0]}=… after the script's name"
        )
    return kwargs


class _ScriptLoader(SourceFileLoader):
    """Compiles the script each time, as `python train.py` does.

    What Python keeps in `__pycache__` would be used again for a script that was edited within a second without
    changing its length: another model would be trained than the one in the file.
    """

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        return self.source_to_code(self.get_data(path), path)


_imported: dict[str, ModuleType] = {}
"""The modules that were imported here, by name. They are imported again, because their file may have changed."""


def _import(path: Path) -> ModuleType:
    refuse_missing(path)
    known = sys.modules.get(path.stem)
    if known is not None and known is not _imported.get(path.stem) and _is_from(known, path):
        return known  # the user's program has imported it, and its classes must stay the same objects
    if path.suffix != ".py":
        raise OnecurveError(f"{path}: not a Python file; its name must end in .py")
    loader = _ScriptLoader(path.stem, str(path.absolute()))
    spec = importlib.util.spec_from_file_location(path.stem, path, loader=loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    # Like `python train.py`: the script can import modules of its own folder, and its classes can be found by name.
    sys.path.insert(0, str(path.resolve().parent))
    sys.modules[path.stem] = module
    _imported[path.stem] = module
    importing.append(path)
    try:
        with seeded(SCRIPT_SEED):
            loader.exec_module(module)
    except OnecurveError:
        raise
    except Exception as error:
        raise UserCodeError(f"{path}: importing it raised {type(error).__name__}: {error}") from error
    finally:
        importing.pop()
    return module


def _is_from(module: ModuleType, path: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and Path(file).resolve() == path.resolve()


def _speaks_of_ranks(error: Exception) -> bool:
    """Tell whether a job has failed because it uses torch.distributed."""
    return any(word in str(error) for word in ("RANK", "process group", "WORLD_SIZE", "MASTER_ADDR"))


def _job_function(module: ModuleType, path: Path) -> Callable[..., Any]:
    function = getattr(module, "job", None)
    if function is None:
        raise OnecurveError(
            f"{path}: it defines no function 'job'; add\n\n"
            "    def job() -> onecurve.Job:\n        return onecurve.Job(…)\n"
        )
    if not callable(function):
        raise OnecurveError(
            f"{path}: 'job' must be a function that returns a onecurve.Job, got {type(function).__name__}"
        )
    return function  # type: ignore[no-any-return]
