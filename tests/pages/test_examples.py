"""The examples reach the results that docs/examples.md promises. Each takes one to four minutes."""

import json
import re
from pathlib import Path

import pytest

from harness import EXAMPLES, onecurve, python

PAGE = (EXAMPLES.parent / "docs" / "examples.md").read_text(encoding="utf-8")
RESULTS = {  # example: (more words, what is compared, the worst value that is accepted)
    "unet.py": (("--plan", "mb16"), "iou", 0.85),
    "lstm.py": (("--plan", "mb64"), "loss", 0.05),
    "gpt.py": (("--plan", "mb32"), "loss", 2.45),
    "llama.py": (("--ranks", "2"), "loss", 1.9),
    "resnet.py": (("--ranks", "2"), "top1", 0.95),
    "tabular.py": (("--plan", "mb128"), "", 0.004),
    "ctr.py": (("--plan", "mb256"), "auc", 0.9),
    "clip.py": (("--ranks", "2"), "loss", 0.2),
    "lora.py": (("--plan", "shard2 mb8"), "loss", 5.35),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", RESULTS)
@pytest.mark.timeout(600)
def test_an_example_reaches_its_result(name: str, tmp_path: Path) -> None:
    words, compared, worst = RESULTS[name]
    done = onecurve("run", str(EXAMPLES / name), *words, "--out", "run", "--no-check", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    evaluation = summary["evaluation"]
    if not compared:
        assert summary["loss"] < worst
    elif compared == "loss":
        assert evaluation["loss"] < worst
    else:
        assert evaluation["metrics"][compared] > worst


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_gan_finds_all_modes() -> None:
    done = python(str(EXAMPLES / "gan.py"), timeout=580)
    assert done.returncode == 0, done.stderr
    found = re.search(r"(\d+)% of the points near a mode, (\d) of 8 modes found", done.stdout)
    assert found, done.stdout
    assert int(found[1]) > 50
    assert found[2] == "8"


def test_every_example_is_on_the_page() -> None:
    for path in EXAMPLES.glob("*.py"):
        assert f"examples/{path.name}" in PAGE
