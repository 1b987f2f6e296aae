"""Tells whether the code of a job has changed since its run was last started. A fingerprint has its names only."""

import logging
import sys
from collections.abc import Mapping
from typing import Any

from onecurve.data.function_identity import function_identity
from onecurve.job.job import Job
from onecurve.job.optimizer import Optimizer
from onecurve.job.schedule import Schedule

_log = logging.getLogger(__name__)


def code_hashes(job: Job) -> dict[str, str]:
    """Return a hash of the functions that decide what each step computes, by field of the job.

    A hash covers the values that a function uses too. It begins with the version of Python, which it depends on.
    """
    functions: dict[str, list[Any]] = {
        "model": [job.model],
        "loss": [job.loss],
        "collate": [job.collate],
        "schedule": [job.schedule],
        "optimizer": list(job.optimizers.values()),
    }
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    hashes = {}
    for field, values in functions.items():
        code = [value for value in values if value is not None and not isinstance(value, Optimizer | Schedule)]
        try:
            parts = [function_identity(value).hash for value in code]
        except Exception:  # objects of the user's may refuse in any way; a warning is not worth an error
            _log.info("the code of %s is not compared", field, exc_info=True)
            continue
        if parts:
            hashes[field] = f"{version}:{':'.join(parts)}"
    return hashes


def changed_code(earlier: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return a text that names the fields whose code differs; empty if there are none."""
    changed = [
        field
        for field in now
        if field in earlier and earlier[field] != now[field] and _version(earlier[field]) == _version(now[field])
    ]
    if not changed:
        return ""
    return f"the code of {', '.join(changed)}, or a value that it uses, has changed since this run was last started"


def _version(code: str) -> str:
    return code.partition(":")[0]
