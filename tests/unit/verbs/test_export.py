"""`onecurve export` in this process: its arguments, and the weights of a finished run."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import onecurve as oc
from harness import SMALL, TESTS
from onecurve.describe.convert import to_document, to_json
from onecurve.job.script import load_job
from onecurve.runs.folder import ORIGIN, RunOrigin


def train(out: Path, evaluate_after: int | None = None) -> dict[str, Tensor]:
    """Train two steps; return the weights after the last one."""
    with oc.prepare(load_job(Path(SMALL), ["epochs=0.25"]), "mb8", out=out) as run:
        for batch in run:
            run.step(batch)
            if batch.step == evaluate_after:
                run.evaluate()
            run.checkpoint()
        return {name: tensor.clone() for name, tensor in run.model.state_dict().items()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    out = tmp_path_factory.mktemp("run")
    return out, train(out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"to": "safetensor"}, r"to = 'safetensor' \(did you mean 'safetensors'\?\)"),
        ({"to": "onnx"}, r"to = 'onnx' \(known: safetensors, hf, int8\)"),
        ({"to": "int8"}, r"int8 needs the model: add --script with the script of the run$"),
        ({"to": "hf"}, r"no config\.json, .*use --to safetensors"),
        ({"best": True}, r"no checkpoint to read \(none is of the best evaluation\)"),
    ],
)
def test_a_wrong_argument_is_refused(
    finished: tuple[Path, dict[str, Tensor]], arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(oc.OnecurveError, match=message):
        oc.export(finished[0], quiet=True, **arguments)


def test_a_folder_that_is_missing_or_has_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(oc.OnecurveError, match="no such folder; give the folder of a run"):
        oc.export(tmp_path / "missing")
    with pytest.raises(oc.OnecurveError, match=r"no checkpoint to read \(there is none\)"):
        oc.export(tmp_path)


def test_int8_names_the_script_of_the_run_but_does_not_execute_it(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit('executed')")
    (tmp_path / ORIGIN).write_text(to_json(to_document(RunOrigin(script=str(script), arguments=()))))
    with pytest.raises(oc.OnecurveError, match=r"add --script .*\(it was .*train\.py\)"):
        oc.export(tmp_path, "int8")


def test_the_weights_of_the_newest_checkpoint_are_written(finished: tuple[Path, dict[str, Tensor]]) -> None:
    folder, weights = finished
    summary = oc.export(folder, quiet=True)
    path = folder / "model.safetensors"
    exported = load_file(path)
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], tensor) for name, tensor in weights.items())
    assert summary.path == str(path)
    assert (summary.step, summary.tensors, summary.bytes) == (2, 4, path.stat().st_size)
    assert summary.loss is None


def test_another_path_may_be_given(finished: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "weights.safetensors"
    oc.export(finished[0], out=path, quiet=True)
    assert load_file(path).keys() == finished[1].keys()


def test_a_path_that_cannot_be_written_is_refused(finished: tuple[Path, dict[str, Tensor]], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(oc.OnecurveError, match=r"cannot be written .*; give another --out"):
        oc.export(finished[0], out=tmp_path / "file" / "weights.safetensors", quiet=True)


def test_best_exports_the_checkpoint_of_the_best_evaluation(tmp_path: Path) -> None:
    last = train(tmp_path, evaluate_after=1)
    summary = oc.export(tmp_path, best=True, quiet=True)
    assert summary.step == 1
    exported = load_file(summary.path)
    assert not all(torch.equal(exported[name], tensor) for name, tensor in last.items())
    assert oc.export(tmp_path, quiet=True).step == 2


def test_checkpoints_in_another_place_are_found_through_the_origin(
    finished: tuple[Path, dict[str, Tensor]], tmp_path: Path
) -> None:
    origin = RunOrigin(script="train.py", arguments=(), checkpoints=str(finished[0] / "checkpoints"))
    (tmp_path / ORIGIN).write_text(to_json(to_document(origin)))
    assert oc.export(tmp_path, quiet=True).step == 2


TIED_SCRIPT = """
import onecurve as oc, torch
from torch import nn

class Tied(nn.Module):
    # A head that shares the weight of the embedding, as in examples/gpt.py.
    def __init__(self):
        super().__init__()
        self.embedding, self.hidden = nn.Embedding(8, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, 8, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x):
        return self.head(self.hidden(self.embedding(x)))

class Words:
    def __len__(self): return 16
    def __getitem__(self, index): return torch.tensor(index % 8), torch.tensor(index % 8)

def job():
    return oc.Job(model=Tied, loss=oc.loss.cross_entropy, data=Words, optimizer=oc.SGD(lr=0.1), global_batch=8, steps=2)
"""


def test_the_documented_recipe_loads_int8_weights_of_a_model_with_a_tied_head(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torchao")
    script, folder = tmp_path / "tied.py", tmp_path / "runs" / "gpt"
    script.write_text(TIED_SCRIPT)
    with oc.prepare(load_job(script), "mb8", out=folder) as run:
        for batch in run:
            run.step(batch)
            run.checkpoint()
        trained = run.model
    oc.export(folder, "int8", script=script, quiet=True)
    document = (TESTS.parent / "docs" / "checkpoints.md").read_text()
    (recipe,) = [code for code in re.findall(r"```python\n(.*?)```", document, re.DOTALL) if "unflatten" in code]
    model: Any = load_job(script).model()
    monkeypatch.chdir(tmp_path)
    exec(recipe, {"model": model})
    assert model.head.weight is model.embedding.weight
    assert torch.equal(model.embedding.weight, trained.embedding.weight)
    assert model.hidden.weight.dequantize().sub(trained.hidden.weight).abs().max() < 0.01
    words = torch.arange(8)
    torch.testing.assert_close(model(words), trained(words), rtol=0.05, atol=0.05)
