"""`onecurve tune` finds arguments, goes on where it was stopped, and says how to use them."""

import json
import tomllib
from pathlib import Path

import pytest

import onecurve as oc
from harness import SMALL, onecurve


def test_a_search_that_is_continued(tmp_path: Path) -> None:
    words = ("tune", SMALL, "lr=1e-4..1e-1", "epochs=2", "--out", "study")
    first = onecurve(*words, "--trials", "2", "--json", cwd=tmp_path)
    assert first.returncode == 0, first.stderr
    tuning = json.loads(first.stdout)
    assert [trial["number"] for trial in sorted(tuning["trials"], key=lambda trial: trial["number"])] == [0, 1]
    assert tuning["trials"][0]["outcome"] == "finished"
    assert tuning["trials"][0]["steps"] == 16
    again = onecurve(*words, "--trials", "3", cwd=tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stderr.count("trial 2") == 1
    assert "train with the best arguments:" in again.stdout
    best = tomllib.loads((tmp_path / "study" / "best.toml").read_text())
    assert best["command"].startswith(f"onecurve run {SMALL} epochs=2 lr=")
    assert (tmp_path / "study" / "tune.html").is_file()
    run = tmp_path / "study" / "trials" / f"{best['trial']:05d}"
    assert json.loads((run / "summary.json").read_text())["evaluation"]["loss"] == best["value"]
    with pytest.raises(oc.OnecurveError, match=r"begun with other arguments \(searched\)"):
        oc.tune(SMALL, ["lr=1e-4..1e-2", "epochs=2"], out=tmp_path / "study")
