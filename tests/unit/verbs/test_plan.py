"""`onecurve plan` in this process, for a cluster that is not there."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import onecurve as oc
from harness import SMALL
from onecurve.describe.cluster import Cluster
from onecurve.describe.cluster_shorthand import parse_cluster
from onecurve.describe.convert import read_toml, write_toml
from onecurve.describe.plan import Plan


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"script": "missing.py"}, "missing.py: no such file"),
        ({"precision": ["int4"]}, "precision 'int4'.*fp32, bf16, fp16"),
        ({"cluster": "8xH1OO"}, "'H1OO' is not in the catalogue .*H100"),
        ({"cluster": "missing.toml"}, "missing.toml: no such file"),
        ({"price": 0.0}, "price = 0.0; it must be above 0"),
        ({"price": float("nan")}, "price = nan; it must be above 0"),
        ({"arguments": ["speed=3"]}, r"job\(\) has no argument 'speed'"),
    ],
)
def test_a_wrong_argument_is_refused(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(oc.OnecurveError, match=message):
        oc.plan(**({"script": SMALL, "cluster": "1xH100"} | arguments))


def test_a_plan_is_advised_and_written(tmp_path: Path) -> None:
    said: list[str] = []
    advice = oc.plan(SMALL, cluster="1xH100", price=2.0, out=tmp_path / "plan.toml", say=said.append)
    assert advice.best is not None
    assert advice.best.fits
    assert advice.best.price_per_hour == 2.0
    assert advice.global_batch == 8
    assert advice.parameters == 3 * 4 + 4 + 4 + 1
    written = read_toml(Plan, tmp_path / "plan.toml")
    assert written == advice.best.plan
    assert written.global_batch == 8
    assert "tracing the model" in said
    assert "timing the model on this device" not in said  # the cluster is elsewhere


def test_a_cluster_may_be_a_file_or_an_object(tmp_path: Path) -> None:
    cluster = parse_cluster("1xH100")
    write_toml(cluster, tmp_path / "cluster.toml")
    expected = oc.plan(SMALL, cluster="1xH100")
    assert expected.machines_source.startswith("the catalogue of devices")
    for same in (cluster, str(tmp_path / "cluster.toml")):
        advice = oc.plan(SMALL, cluster=same)
        assert replace(advice, machines_source=expected.machines_source) == expected


def test_no_file_is_written_if_no_plan_fits(tmp_path: Path) -> None:
    tiny = Cluster.of("cuda", devices=1, memory=1 << 10, cores=1)
    device = tiny.groups[0].device
    device.flops["fp32"] = 1e12
    advice = oc.plan(SMALL, cluster=tiny, out=tmp_path / "plan.toml")
    assert advice.best is None
    assert any("it needs at least" in hint for hint in advice.hints)
    assert not (tmp_path / "plan.toml").exists()


def test_a_job_without_a_loss_cannot_be_planned(tmp_path: Path) -> None:
    script = tmp_path / "own_loop.py"
    script.write_text(
        "import onecurve as oc, torch\n"
        "def job():\n"
        "    return oc.Job(model=torch.nn.Sequential, data=list, optimizer=oc.SGD(lr=1), global_batch=8, steps=1)\n"
    )
    with pytest.raises(oc.OnecurveError, match=r"own_loop\.py: it cannot be planned: it has no loss"):
        oc.plan(script, cluster="1xH100")
