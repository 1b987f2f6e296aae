"""Remembers on this host which jobs were proved under which plans, so that a second start need not prove again."""

import functools
import hashlib
import inspect
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

import onecurve
from onecurve.describe.convert import to_json
from onecurve.describe.plan import Plan
from onecurve.device.files import cache_folder, replace_file
from onecurve.job.job import Job

_log = logging.getLogger(__name__)
_METHOD = "two steps, the second from moved weights"
"""Changes when a proof compares more: then earlier ones do not count."""
_GENERATED = "<string>"
"""Code that a library wrote from a class, such as the methods of a dataclass."""
_VERSIONED = (*torch.__path__, *onecurve.__path__)


def proof_key(
    job: Job, fingerprint: Mapping[str, str], arguments: Sequence[str], model: nn.Module, plan: Plan, device: str
) -> str:
    """Return a hash of all that a proof depends on: the job, its arguments, its code, the plan and the versions.

    Empty if some code is in no readable file: it could change without being noticed.
    """
    code = _code_hash(source_files(job, model))
    if not code:
        return ""
    known = [
        _METHOD,
        dict(fingerprint),
        list(arguments),
        to_json(plan),
        code,
        torch.__version__,
        onecurve.__version__,
        device,
    ]
    return hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]


def source_files(job: Job, model: nn.Module) -> set[str]:
    """Return the files with the code of the model's modules, its constructor, the loss, collate and the optimizer.

    The files of torch and onecurve are left out: their versions stand for them.
    """
    given: list[Any] = [model, job.model, job.loss, job.collate, *job.optimizers.values()]
    files = {function.__code__.co_filename for value in given for function in _functions_of(value)}
    return {file for file in files if not file.startswith(_VERSIONED) and file != _GENERATED}


def remembered(key: str) -> str:
    """Return what was proved under this key, or an empty text."""
    try:
        return str(json.loads(_file(key).read_text())["proved"]) if key else ""
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:  # RuntimeError: there is no home folder
        _log.info("earlier proofs cannot be read: %s", error)
        return ""


def remember(key: str, text: str) -> None:
    """Remember what was proved. If that fails, the next start proves it again."""
    if not key:
        return
    try:
        _file(key).parent.mkdir(parents=True, exist_ok=True)
        replace_file(_file(key), [json.dumps({"version": 1, "proved": text}).encode()])
    except (OSError, RuntimeError) as error:
        _log.info("the proof is not remembered: %s", error)


def _file(key: str) -> Path:
    return cache_folder() / "proofs" / f"{key}.json"


def _code_hash(files: Iterable[str]) -> str:
    code = hashlib.sha256()
    try:
        for file in sorted(files):
            code.update(hashlib.sha256(Path(file).read_bytes()).digest())
    except OSError as error:  # code that was typed or generated
        _log.info("the proof will not be remembered: %s", error)
        return ""
    return code.hexdigest()


def _functions_of(value: Any) -> Iterator[FunctionType]:
    if isinstance(value, functools.partial):
        yield from _functions_of(value.func)
    elif isinstance(value, FunctionType):
        yield _original(value)
    elif isinstance(value, nn.Module):
        yield from _methods({kind for module in value.modules() for kind in type(module).__mro__})
    elif value is not None:
        yield from _methods(value.__mro__ if isinstance(value, type) else type(value).__mro__)


def _methods(kinds: Iterable[type]) -> Iterator[FunctionType]:
    for kind in kinds:
        yield from (_original(value) for value in vars(kind).values() if isinstance(value, FunctionType))


def _original(function: FunctionType) -> FunctionType:
    """The function that decorators wrapped."""
    original = inspect.unwrap(function)
    return original if isinstance(original, FunctionType) else function
