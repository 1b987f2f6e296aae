"""Models as people have them hold under every kind of plan, or are refused for a reason that is named."""

import json
import sys

import pytest

from harness import BENCHMARKS, TESTS, python

sys.path.insert(0, str(TESTS / "zoo"))
from catalogue import CI_MODELS, ZOO


def check(*names: str, timeout: float) -> dict:
    ended = python(str(BENCHMARKS / "zoo.py"), "--json", "--only", *names, timeout=timeout)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def failures(result: dict) -> list[dict]:
    return [cell for cell in result["details"] if cell["outcome"] not in ("holds", "refused")]


@pytest.mark.parametrize("name", CI_MODELS)
def test_one_model_of_each_kind_holds(name: str) -> None:
    result = check(name, timeout=280)
    assert failures(result) == []
    assert result["cells"] > 0
    refused = [cell for cell in result["details"] if cell["outcome"] == "refused"]
    assert {cell["kind"] for cell in refused} == (
        {"one device", "replicate", "shard", "pipeline", "zero-bubble"} if name == "ema_buffer" else set()
    )
    assert all("'blocks.0.center'" in cell["detail"] for cell in refused)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [model.name for model in ZOO])
def test_every_model_holds_or_is_refused(name: str) -> None:
    assert failures(check(name, timeout=900)) == []
