"""A run on two ranks continues with another learning rate, batch and length, and equals one device."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

import onecurve as oc
from harness import SMALL, onecurve, records, steps, warnings
from onecurve.data.order import Order
from onecurve.describe.record import EventRecord
from onecurve.job.script import load_job


def by_hand() -> dict[str, Tensor]:
    """Train in a plain loop in float64: 4 steps of 8 samples at a rate of 0.05, then 4 of 12 samples at 0.02."""
    job = load_job(Path(SMALL), ())
    with oc.prepare(job, "mb8 fp64") as run:
        model = run.model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    dataset, order, position = job.data(), Order([64], seed=0), 0
    for batch, lr in [(8, 0.05)] * 4 + [(12, 0.02)] * 4:
        samples = [dataset[sample.offset] for sample in order.samples(position, position + batch)]
        position += batch
        x, y = (torch.stack(column).double() for column in zip(*samples, strict=True))
        optimizer.param_groups[0]["lr"] = lr
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return dict(model.state_dict())


def test_a_run_continues_with_a_changed_rate_batch_and_length(tmp_path) -> None:
    first = onecurve("run", SMALL, "epochs=0.5", "--plan", "replicate2 mb4 fp64", "--out", "a", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    changed = ["run", SMALL, "epochs=1.25", "lr=0.02", "batch=12", "--plan", "shard2 mb6 fp64", "--out", "a"]
    done = onecurve(*changed, "--change", "lr,steps,global_batch", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    text = "after step 4: lr 0.05 → 0.02; global_batch 8 → 12; steps 0.5 epochs → 1.25 epochs"
    assert f"changed  {text}" in done.stdout.splitlines()
    assert ("changed", text) in [
        (each.event, each.text) for each in records(tmp_path / "a") if isinstance(each, EventRecord)
    ]
    assert [record.samples for record in steps(tmp_path / "a")] == [8, 16, 24, 32, 44, 56, 68, 80]
    assert json.loads((tmp_path / "a" / "run.json").read_text())["changes"] == [
        {"field": "lr", "old": "0.05", "new": "0.02", "step": 4},
        {"field": "global_batch", "old": "8", "new": "12", "step": 4},
        {"field": "steps", "old": "0.5 epochs", "new": "1.25 epochs", "step": 4},
    ]
    actual = load_file(tmp_path / "a" / "weights.safetensors")
    for name, expected in by_hand().items():
        torch.testing.assert_close(actual[name], expected, rtol=1e-12, atol=1e-14)


def test_a_run_that_continues_with_edited_code_says_so(tmp_path: Path) -> None:
    script, text, out = tmp_path / "edited.py", Path(SMALL).read_text(), tmp_path / "a"
    for epochs, code in [("0.5", text), ("1", text), ("1.5", text.replace("nn.Tanh", "nn.ReLU"))]:
        script.write_text(code)
        change = ["steps"] if epochs != "0.5" else []
        oc.run(script, [f"epochs={epochs}"], plan="mb8", out=out, change=change, check=False, quiet=True)
        about_code = [each for each in warnings(out) if "the code of" in each]
        assert len(about_code) == (code != text)
    assert about_code[0].startswith("the code of model, or a value that it uses, has changed")
