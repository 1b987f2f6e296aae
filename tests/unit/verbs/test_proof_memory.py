"""A proof is remembered for the same job, code and plan, and for nothing else; a cache that fails breaks no run."""

from pathlib import Path

import pytest

from onecurve.describe.plan import Plan
from onecurve.job.script import load_job
from onecurve.model.deferred import defer_init
from onecurve.verbs.proof_memory import proof_key, remember, remembered

SCRIPT = """
import torch
from torch import nn
import onecurve as oc

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 1)
    def forward(self, x):
        return self.linear(x)

def job(scale: float = 1.0):
    return oc.Job(model=Model, loss=oc.loss.mse, data=lambda: [(torch.zeros(3), torch.zeros(1))] * 8,
                  optimizer=oc.AdamW(lr=0.1), global_batch=4, steps=1)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "onecurve" / "proofs"


def key(folder: Path, script: str = SCRIPT, plan: str = "replicate2 mb2", arguments: tuple[str, ...] = ()) -> str:
    path = folder / "train.py"
    path.write_text(script)
    job = load_job(path, arguments)
    model = defer_init(job.model, job.seed).module
    return proof_key(job, {"global_batch": str(job.global_batch)}, arguments, model, Plan.parse(plan), "cpu")


def test_the_key_depends_on_code_arguments_and_plan(tmp_path: Path) -> None:
    assert key(tmp_path) == key(tmp_path)
    others = [
        key(tmp_path, SCRIPT.replace("return self.linear(x)", "return 2 * self.linear(x)")),
        key(tmp_path, plan="shard2 mb2"),
        key(tmp_path, arguments=("scale=2",)),
    ]
    assert len({key(tmp_path), *others}) == 4
    assert "" not in others


def test_code_that_is_in_no_file_has_no_key(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    job = load_job(path)
    model = defer_init(job.model, job.seed).module
    path.unlink()
    assert proof_key(job, {}, (), model, Plan.parse("replicate2 mb2"), "cpu") == ""


def test_only_a_proof_that_was_remembered_is_found() -> None:
    assert remembered("a") == ""
    remember("a", "it holds")
    assert (remembered("a"), remembered("b")) == ("it holds", "")
    remember("", "it holds")
    assert remembered("") == ""


@pytest.mark.parametrize("content", ["", "[]", "{}", "\x00"])
def test_a_damaged_memory_is_no_proof(cache: Path, content: str) -> None:
    remember("a", "it holds")
    (cache / "a.json").write_text(content)
    assert remembered("a") == ""


def test_a_cache_folder_that_cannot_be_written_is_ignored(cache: Path) -> None:
    cache.parent.parent.mkdir()
    cache.parent.write_text("a file where the folder should be")
    remember("a", "it holds")
    assert remembered("a") == ""
