"""What is measured and shown while samples are loaded."""

from collections.abc import Callable

import pytest

from onecurve.data import load_watch, piece_work
from onecurve.data.late_loader import MOST_AHEAD, LateLoader
from onecurve.data.load_watch import LoadWatch
from onecurve.data.piece_work import _ProgressLine
from onecurve.job.batch import LoadTime


def test_the_time_of_loading_is_counted_from_the_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = {"perf_counter": 100.0, "process_time": 40.0, "storage_seconds": 10.0}

    def clock(name: str) -> Callable[[], float]:
        return lambda: now[name]

    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(load_watch.time, name, clock(name))
    monkeypatch.setattr(load_watch, "storage_seconds", clock("storage_seconds"))
    watch = LoadWatch()
    now.update(perf_counter=105.0, process_time=43.0, storage_seconds=11.0)
    assert watch.time() == LoadTime(5.0, 3.0, 1.0)


@pytest.mark.parametrize(("is_terminal", "seconds"), [(True, 0.2), (False, 10.0)])
def test_progress_is_shown_every_few_seconds_with_the_time_that_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], is_terminal: bool, seconds: float
) -> None:
    """200 of 1,000 samples were done before; 100 took as long as a line, so 700 more take seven times as long."""
    now = 50.0
    monkeypatch.setattr(piece_work.time, "monotonic", lambda: now)
    monkeypatch.setattr("sys.stderr.isatty", lambda: is_terminal, raising=False)
    line = _ProgressLine("index", 1000, 200)
    now += seconds * 0.5
    line.advance(50)
    assert capsys.readouterr().err == ""
    now = 50.0 + seconds
    line.advance(50)
    shown = capsys.readouterr().err
    assert f"index: 300 of 1,000 samples, about {7 * seconds:.0f} s left" in shown
    assert shown.endswith("\n") != is_terminal
    now += seconds * 0.5
    line.advance(50)
    assert capsys.readouterr().err == ""


def test_processes_read_two_batches_ahead_each_and_more_if_they_are_small() -> None:
    loader = LateLoader([1, 2, 3], pins=False, active=3, num_workers=4)
    assert loader.ahead == 6
    loader.batch_bytes = 1 << 40
    assert loader.ahead == 6
    loader.batch_bytes = (257 << 20) // 8  # not quite eight of them fit into 256 MiB
    assert loader.ahead == 7
    loader.batch_bytes = 0
    assert loader.ahead == MOST_AHEAD
