"""How a run is doing, from its records."""

import math
from pathlib import Path

from rich.console import Console

import onecurve as oc
from onecurve.diagnose.history_reader import read_history
from onecurve.diagnose.run_status import status_of
from onecurve.report.status_view import runs_table, shown_ranks, sparkline, status_view
from onecurve.verbs.status import runs_below
from synthetic_run import write_run

_LAST = 1_000_000.0 + 60 * 0.099
"""About when the last step of a synthetic run of 60 steps ends."""


def drawn(renderable: object) -> str:
    console = Console(width=100, record=True, file=None, force_terminal=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_states_of_a_run(tmp_path: Path) -> None:
    ended, going = write_run(tmp_path / "ended"), write_run(tmp_path / "going", ends=False)
    assert oc.status(ended).state == "finished"
    assert oc.status(going).state == "silent"
    history = read_history(going)
    running = status_of(history, now=_LAST + 10)
    assert running.state == "running"
    assert running.step == 60
    assert running.samples_per_second > 70
    assert status_of(history, now=_LAST + 1000).state == "silent"
    assert status_of(history, now=_LAST + 1000, locked=True).state == "silent"


def test_a_run_whose_processes_are_gone_has_stopped(tmp_path: Path) -> None:
    history = read_history(write_run(tmp_path, ends=False))
    assert status_of(history, now=_LAST + 5, locked=False).state == "running"  # a lost rank may be on its way back
    assert status_of(history, now=_LAST + 20, locked=False).state == "stopped"


def test_the_view_has_what_one_looks_for(tmp_path: Path) -> None:
    text = drawn(status_view(oc.status(write_run(tmp_path))))
    for part in ("finished", "replicate2 mb4", "60 of 60", "0.1449", "samples/s", "1.0 GiB", "none yet", "h0"):
        assert part in text


def test_of_many_ranks_the_extremes_are_shown(tmp_path: Path) -> None:
    def times(rank: int, _: int) -> dict[str, float]:
        return {"forward": 0.5 if rank == 17 else 0.1, "replicate": 0.1}

    status = oc.status(write_run(tmp_path, ranks=40, times=times, plan="replicate40 mb1"))
    shown = shown_ranks(status.rank_status)
    assert shown[0].rank == 17
    assert len(shown) <= 9
    assert "of 40 ranks" in drawn(status_view(status))


def test_runs_below_a_folder_are_listed(tmp_path: Path) -> None:
    for name in ("a", "b/c"):
        write_run(tmp_path / name)
    (tmp_path / "d" / "records").mkdir(parents=True)
    (tmp_path / "d" / "records" / "rank-0.jsonl").write_text("no record\n")
    runs = runs_below(tmp_path)
    assert {Path(run.folder).name for run in runs} == {"a", "c"}
    assert "b/c" in drawn(runs_table(runs)).replace("\n", "")


def test_a_sparkline() -> None:
    assert sparkline([4.0, 3.0, 2.0, 1.0]) == "█▆▃▁"
    assert sparkline([1.0, math.nan, 1.0]) == "▁ ▁"
    assert sparkline([]) == ""
    assert len(sparkline([float(n) for n in range(1000)])) <= 40
