"""Wrong gradients end a run before they change the weights, and an audit changes nothing else."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from harness import JOBS, onecurve, records
from onecurve.describe.record import EventRecord

FAULTY = str(JOBS / "faulty.py")


def run(folder: Path, plan: str, *arguments: str):
    return onecurve("run", FAULTY, *arguments, "--plan", plan, "--no-check", "--out", "run", "--fresh", cwd=folder)


def test_a_flipped_bit_is_reported_and_other_runs_train_the_same_bits(tmp_path) -> None:
    weights = []
    for plan, options in (("shard2 mb2×2", ["audit=0"]), ("shard2 mb2×2", ["audit=0", "--audit", "5"])):
        done = run(tmp_path, plan, *options, "steps=12")
        assert done.returncode == 0, done.stderr
        weights.append(load_file(tmp_path / "run" / "weights.safetensors"))
        events = [record.event for record in records(tmp_path / "run") if isinstance(record, EventRecord)]
        assert events.count("warning") == 0
        assert events.count("audit") == options.count("--audit")
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

    # From step 8 on, rank 1 always computes one bit wrong; the next audited step is 10.
    faulty = run(tmp_path, "replicate3 mb(3,3,2)", "audit=5", "rank=1", "step=8", "bit=0")
    assert faulty.returncode == 1
    assert "step 10: the gradient of 'blocks.1.linear.weight' that rank 1 on " in faulty.stderr
    assert "rank 0 on " in faulty.stderr
    assert "all ranks agreed: step 5. " in faulty.stderr
    assert any("rank 1 on " in r.text for r in records(tmp_path / "run") if isinstance(r, EventRecord))
