"""The gradient noise scale is the same however the batch is divided."""

import json

import pytest
import torch

from harness import JOBS, onecurve
from onecurve.job.script import load_job
from onecurve.model.recorder import build_real

NOISY = JOBS / "noisy.py"


def true_scale() -> float:
    """From the gradients of all samples, one by one."""
    job = load_job(NOISY)
    model, data = build_real(job.model, job.seed), job.data()
    gradients = []
    for index in range(0, 4096, 4):
        x, y = data[index]
        model.zero_grad()
        (model(x[None]) - y).square().mean().backward()
        gradients.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
    stacked = torch.stack(gradients)
    return float(stacked.var(dim=0).sum() / stacked.mean(dim=0).square().sum())


def test_the_noise_scale_does_not_depend_on_the_plan(tmp_path) -> None:
    scales = {}
    for plan in ("mb8×4", "replicate2 mb16", "shard2 mb8×2"):
        done = onecurve("run", str(NOISY), "--plan", plan, "--out", plan, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        found = onecurve("why", plan, "--json", cwd=tmp_path)
        assert found.returncode == 0, found.stderr
        scales[plan] = json.loads(found.stdout)["noise_scale"]
    first = scales["mb8×4"]
    for scale in scales.values():
        assert scale == pytest.approx(first, rel=0.1), scales
    assert first == pytest.approx(true_scale(), rel=0.5)
