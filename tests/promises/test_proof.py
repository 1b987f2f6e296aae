"""`onecurve run` proves its plan before the first update, once; a plan that computes something else trains nothing."""

from pathlib import Path

import pytest

import onecurve as oc
from harness import JOBS, SMALL, onecurve, records, steps
from onecurve.describe.record import EventRecord

MUTATED = str(JOBS / "mutated.py")


def proofs(folder: Path) -> list[str]:
    """The records of a run about its proof."""
    events = [record for record in records(folder) if isinstance(record, EventRecord)]
    return [event.text for event in events if event.event == "proved" or "not proved" in event.text]


def test_a_plan_that_computes_something_else_stops_before_the_first_update(tmp_path) -> None:
    command = ("run", MUTATED, "fault=missing_all_reduce", "model=gpt", "--plan", "tensor2 mb16", "--out", "a")
    stopped = onecurve(*command, cwd=tmp_path, XDG_CACHE_HOME=str(tmp_path))
    assert stopped.returncode == 1
    assert "plan tensor2 mb16 fp32: it does not compute the same as one device" in stopped.stderr
    assert "loss differs by" in stopped.stderr
    assert f"onecurve check {MUTATED} fault=missing_all_reduce model=gpt --plan 'tensor2 mb16 fp32'" in stopped.stderr
    assert "--no-check" in stopped.stderr
    assert [path.name for path in (tmp_path / "a").iterdir()] in ([], [".lock"])
    assert not list(tmp_path.glob("**/proofs/*"))


def test_a_plan_is_proved_once_and_no_check_skips_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "a"

    def proofs_of_run(cache: str, **options: bool) -> list[str]:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / cache))
        oc.run(SMALL, ["epochs=1"], plan="mb2×4", out=out, fresh=True, quiet=True, **options)
        return proofs(out)

    (proved,) = proofs_of_run("cache")
    assert proved.startswith("mb2×2 fp64 computes the same as one device (largest difference")
    losses = [step.loss for step in steps(out)]
    assert proofs_of_run("cache") == [f"earlier: {proved}"]
    assert proofs_of_run("other", check=False) == []
    assert [step.loss for step in steps(out)] == losses  # a proof leaves nothing behind
