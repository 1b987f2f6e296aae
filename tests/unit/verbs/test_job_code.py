"""A changed function of a job is noticed, and nothing else is called a change."""

from collections.abc import Callable
from pathlib import Path

import pytest

import onecurve as oc
from onecurve.job.script import load_job
from onecurve.verbs.job_code import changed_code, code_hashes

SCRIPT = """
import onecurve as oc, torch

class Net(torch.nn.Sequential):
    def __init__(self):
        super().__init__(torch.nn.Linear(3, 1))
    def forward(self, x):
        return super().forward(x) * 2

def loss(out, target):
    return (out - target).square().mean()

def job(lr: float = 0.1) -> oc.Job:
    return oc.Job(model=Net, loss=loss, data=lambda: [], optimizer=oc.SGD(lr=lr), global_batch=8, steps=2)
"""


@pytest.fixture
def job_of(tmp_path: Path) -> Callable[..., oc.Job]:
    def load(text: str, *arguments: str) -> oc.Job:
        (tmp_path / "coded.py").write_text(text)
        return load_job(tmp_path / "coded.py", arguments)

    return load


def test_an_edited_function_is_named(job_of: Callable[..., oc.Job]) -> None:
    before = code_hashes(job_of(SCRIPT))
    edited = SCRIPT.replace("square()", "abs()").replace("* 2", "* 3  ")
    assert changed_code(before, code_hashes(job_of(edited))).startswith("the code of model, loss, or a value")


def test_comments_and_other_fields_are_no_change(job_of: Callable[..., oc.Job]) -> None:
    before = code_hashes(job_of(SCRIPT))
    edited = SCRIPT.replace("class Net", "# Two times a layer.\n\nclass Net").replace("steps=2", "steps=9")
    assert set(before) == {"model", "loss"}
    assert changed_code(before, code_hashes(job_of(edited, "lr=0.2"))) == ""


def test_hashes_of_another_python_are_not_compared() -> None:
    assert changed_code({"loss": "3.1:a"}, {"loss": "3.2:b"}) == ""
    assert changed_code({}, {"loss": "3.2:b"}) == ""
