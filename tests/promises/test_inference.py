"""What a run has learned can be used: loaded on one device, evaluated and asked for outputs on any number of ranks."""

import json
from pathlib import Path

import pytest
import torch

import onecurve as oc
from harness import SMALL, onecurve

PLANS = ("shard2 mb4", "pipeline2 mb4×2")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("inference")
    done = onecurve("run", SMALL, "--plan", "replicate2 mb4", "--out", "a", cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder / "a"


def points(count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [(torch.randn(3, generator=generator), torch.zeros(1)) for _ in range(count)]


def test_an_evaluation_is_the_same_under_every_plan(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    for plan in ("", *PLANS):
        words = ["--plan", plan] if plan else []
        done = onecurve("evaluate", "a", "--json", *words, cwd=run.parent)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["step"], found["evaluation"]["samples"]) == (16, 64)
        assert found["evaluation"]["loss"] == pytest.approx(summary["evaluation"]["loss"], rel=1e-5), plan
    done = onecurve("evaluate", "a", "batch=16", "--best", "--plan", "mb16", cwd=run.parent)
    assert done.returncode == 0, done.stderr
    assert "after step 16, with plan mb16 fp32" in done.stdout
    assert "evaluation: loss" in done.stdout


@pytest.mark.parametrize("plan", [None, "pipeline2 mb4×2"])
def test_outputs_are_those_of_one_device_in_the_order_of_the_samples(run: Path, plan: str | None) -> None:
    model, data = oc.load(run), points(13)
    assert not model.training
    with torch.inference_mode():
        expected = model(torch.stack([x for x, _ in data]))
    outputs = oc.predict(run, data, plan=plan)
    torch.testing.assert_close(torch.stack(outputs), expected)


def test_a_model_that_has_changed_is_named_or_refused(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    script = Path(SMALL).read_text()
    changed = tmp_path / "small.py"
    changed.write_text(script.replace("nn.Tanh()", "nn.ReLU()"))
    origin = json.loads((run / "run.json").read_text())
    copy = tmp_path / "b"
    copy.mkdir()
    (copy / "checkpoints").symlink_to(run / "checkpoints")
    (copy / "run.json").write_text(json.dumps({**origin, "script": str(changed)}))
    with pytest.warns(UserWarning, match="the code of model, or a value that it uses, has changed"):
        oc.load(copy)
    oc.predict(copy, points(2), plan="mb8")
    assert "warning: the code of model, or a value that it uses, has changed" in capfd.readouterr().err
    changed.write_text(script.replace("nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)", "nn.Linear(3, 5)"))
    refusal = pytest.raises(oc.OnecurveError, match=r"0.weight has the shape \[4, 3\] in the checkpoint and \[5, 3\]")
    with pytest.warns(UserWarning, match="the code of model"), refusal:
        oc.load(copy)


def test_what_cannot_be_loaded_is_refused(tmp_path: Path) -> None:
    with pytest.raises(oc.OnecurveError, match="no such folder"):
        oc.load(tmp_path / "nothing")
    with pytest.raises(oc.OnecurveError, match="no checkpoint to read"):
        oc.evaluate(tmp_path)
