"""Planning before paying: plans for clusters that are not available here, and for a probed one."""

import json
import os
from pathlib import Path

import pytest

import onecurve as oc
from harness import EXAMPLES, SMALL, onecurve
from onecurve.describe.cluster import Cluster
from onecurve.describe.convert import read_toml
from onecurve.describe.plan import Plan
from onecurve.describe.plan_validation import validate

GPT = str(EXAMPLES / "gpt.py")
LARGE_GPT = ("width=16384", "depth=12", "context=2048", "batch=64")


def test_a_plan_for_a_cluster_that_is_not_available(tmp_path: Path) -> None:
    out = tmp_path / "plan.toml"
    advice = oc.plan(GPT, LARGE_GPT, cluster="2x8xH100", precision=["bf16"], price=2.0, out=out)
    best = advice.best
    assert best is not None
    assert best.fits
    assert best.plan.mesh.size <= 16
    assert best.cost == pytest.approx(2.0 * best.devices * best.hours)
    assert best.plan.global_batch == 64
    written = read_toml(Plan, out)
    assert str(written) == str(best.plan)
    assert (written.layouts, written.stages) == (best.plan.layouts, best.plan.stages)
    validate(written, 64, Cluster.of("cuda", 16, 80 << 30, 64))
    for runner_up in advice.runners_up:
        assert runner_up.reason
        assert not runner_up.estimate.fits or runner_up.estimate.step >= best.step


def test_a_job_that_does_not_fit_is_told_how_much_memory_it_needs(tmp_path: Path) -> None:
    failed = onecurve("plan", GPT, *LARGE_GPT, "--cluster", "1xT4", "--precision", "fp32", cwd=tmp_path)
    assert failed.returncode == 1
    assert "does not fit" in failed.stdout
    assert "more than there is" in failed.stdout
    assert "it would fit on devices with at least" in failed.stdout
    assert not (tmp_path / "plan.toml").exists()


def test_unequal_devices_get_unequal_shares() -> None:
    job = ("width=512", "depth=2", "batch=64")
    advice = oc.plan(GPT, job, cluster="1xA100+1xV100", precision=["fp16"])
    assert advice.best is not None
    plans = [advice.best.plan, *(runner_up.estimate.plan for runner_up in advice.runners_up)]
    shares = [plan.micro_batch for plan in plans if plan.mesh.data == 2]
    assert shares
    assert all(isinstance(share, tuple) and share[0] > share[1] for share in shares)


def test_probe_plan_and_run(tmp_path: Path) -> None:
    """Probe the cluster, plan for it and run the plan; then let a run plan by itself."""
    probed = onecurve("probe", cwd=tmp_path)
    assert probed.returncode == 0, probed.stderr
    cluster = read_toml(Cluster, tmp_path / "cluster.toml")
    (host,) = cluster.groups
    assert host.cores_per_host == len(os.sched_getaffinity(0))
    assert 1e8 < host.device.speed("fp32") < 1e13
    assert host.rank_overhead_bytes < host.device.memory

    planned = onecurve("plan", SMALL, "epochs=1", "--cluster", "cluster.toml", "--json", cwd=tmp_path)
    assert planned.returncode == 0, planned.stderr
    best = json.loads(planned.stdout)["best"]
    done = onecurve("run", SMALL, "epochs=1", "--plan", "plan.toml", "--out", "a", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plan"] == best["plan"]

    self_planned = onecurve("run", SMALL, "epochs=1", "--out", "b", "--json", cwd=tmp_path)
    assert self_planned.returncode == 0, self_planned.stderr
    summary = json.loads(self_planned.stdout)
    assert summary["predicted_step_seconds"] > 0
    start = json.loads((tmp_path / "b" / "records" / "rank-0.jsonl").read_text().splitlines()[0])
    assert sum(start["predicted"].values()) == pytest.approx(summary["predicted_step_seconds"])
