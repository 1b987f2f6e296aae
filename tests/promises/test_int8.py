"""A model with int8 weights is compared with itself as it was trained."""

import json

import pytest

from harness import EXAMPLES, onecurve

SCRIPT = f"""
import sys; sys.path.insert(0, {str(EXAMPLES)!r})
from dataclasses import replace
from torch.utils.data import Subset
import gpt, onecurve as oc

def job() -> oc.Job:
    trained = gpt.job(width=32, context=128, steps=5)
    return replace(trained, evaluate=oc.Evaluate(lambda: Subset(trained.evaluate.data(), range(400)), every=100))
"""


def test_loss_size_and_speed_of_int8(tmp_path) -> None:
    (tmp_path / "job.py").write_text(SCRIPT)
    done = onecurve("run", "job.py", "--plan", "mb32", "--no-check", "--out", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = onecurve("evaluate", "run", "--int8", "--json", cwd=tmp_path)
    assert found.returncode == 0, found.stderr
    trained, weights, dynamic = json.loads(found.stdout)["int8"]
    assert [each["kind"] for each in (trained, weights, dynamic)] == ["as trained", "weight-only", "dynamic"]
    for each in (weights, dynamic):
        assert each["bytes"] < 0.5 * trained["bytes"]
        loss = each["evaluation"]["loss"]
        assert loss == pytest.approx(trained["evaluation"]["loss"], rel=0.02)
        assert loss != trained["evaluation"]["loss"]
