"""Verbs take a script's path or its job function; anything else is refused with the fix."""

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import onecurve as oc
from harness import python
from onecurve.describe.errors import OnecurveError
from onecurve.job.script import load_job
from onecurve.job.script_path import script_path

SCRIPT = """
import onecurve as oc, torch

def job() -> oc.Job:
    return oc.Job(model=lambda: torch.nn.Linear(3, 1), loss=oc.loss.mse, data=Points, optimizer=oc.SGD(lr=0.1),
                  global_batch=8, steps=2)

class Points:
    def __len__(self): return 16
    def __getitem__(self, index): return torch.full((3,), index / 16), torch.zeros(1)
"""


def nested() -> Callable[[], oc.Job]:
    def job() -> oc.Job:
        raise AssertionError("not called")

    return job


def make() -> oc.Job:
    raise AssertionError("not called")


def test_the_function_job_of_a_file_stands_for_the_file(tmp_path: Path) -> None:
    path = tmp_path / "with_job.py"
    path.write_text(SCRIPT)
    load_job(path)
    assert script_path(sys.modules["with_job"].job, "run") == path
    assert script_path(str(path), "run") == path


@pytest.mark.parametrize("verb", [oc.run, oc.plan, oc.check])
@pytest.mark.parametrize(
    ("given", "what"),
    [
        (make, "the function 'make'"),
        (nested(), "the function 'nested.<locals>.job'"),
        (3, "an object of type int"),
    ],
)
def test_what_the_ranks_cannot_import_is_refused_with_the_fix(verb: Callable[..., Any], given: Any, what: str) -> None:
    with pytest.raises(oc.OnecurveError) as caught:
        verb(given)
    assert str(caught.value).startswith(f"{verb.__name__}: got {what}; ")
    assert "give the path of the Python file that defines job(), or a function named 'job'" in str(caught.value)


def test_a_script_runs_its_own_job_under_a_guard_only(tmp_path: Path) -> None:
    guarded = "if __name__ == '__main__':\n    print(oc.run(job, ranks=2, quiet=True).steps)\n"
    (tmp_path / "guarded.py").write_text(SCRIPT + guarded)
    done = python("guarded.py", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr
    (tmp_path / "bare.py").write_text(SCRIPT + "oc.run(job, ranks=2, quiet=True)\n")
    failed = python("bare.py", cwd=tmp_path)
    assert failed.returncode == 1
    assert "bare.py: it calls onecurve.run while it is imported, which every rank does; put the call" in failed.stderr


def test_a_module_that_the_program_has_imported_stays_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise instances of its classes could not be sent to the ranks any more."""
    path = tmp_path / "imported_job.py"
    path.write_text(SCRIPT)
    monkeypatch.syspath_prepend(str(tmp_path))
    import imported_job

    load_job(path)
    assert sys.modules["imported_job"] is imported_job
    monkeypatch.delitem(sys.modules, "imported_job")


def test_a_script_that_was_edited_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads what it has compiled before if a file's size and its time, in seconds, are the same."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    path = tmp_path / "edited_job.py"
    for steps in (2, 3):
        path.write_text(SCRIPT.replace("steps=2", f"steps={steps}"))
        os.utime(path, (1e9, 1e9))
        assert load_job(path).steps == steps


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("torch.distributed.init_process_group('gloo')", "a job has no rank"),
        ("pass", "got NoneType; is the return missing?"),
        ("import onecurve; onecurve.Job(batch_size=8)", "argument 'batch_size'; did you mean 'global_batch'?"),
    ],
)
def test_a_job_that_fails_says_what_to_do(body: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "failing_job.py"
    path.write_text(f"import torch\ndef job():\n    {body}\n")
    with pytest.raises(OnecurveError, match=re.escape(expected)):
        load_job(path)
