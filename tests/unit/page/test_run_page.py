"""The page of a run."""

import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

import onecurve as oc
from onecurve.page.chart import line_chart
from onecurve.page.heat_map import heat_map
from onecurve.report.why import comparison_lines
from synthetic_run import write_run

VOID = {"meta", "img", "br", "line", "rect", "polyline", "polygon"}


class Checked(HTMLParser):
    """Refuses tags that are not closed, and anything that would be fetched."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            assert name not in ("src", "href") or str(value).startswith("data:"), (tag, value)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag


def test_the_page_is_whole_and_asks_for_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "<b>run</b>", ranks=3, plan="replicate3 mb1")
    oc.why(folder, html=tmp_path / "page.html", trace=tmp_path / "trace.json")
    page = (tmp_path / "page.html").read_text()
    checked = Checked()
    checked.feed(page)
    assert checked.open == []
    assert "<b>run" not in page
    assert "http" not in re.sub(r"http://www.w3.org\S*", "", page)
    assert "<script" not in page
    for title in (
        "Loss",
        "Learning rate",
        "Gradient norm",
        "Time of a step by cause",
        "Ranks over the steps",
        "Events",
    ):
        assert title in page
    assert '"traceEvents"' in (tmp_path / "trace.json").read_text()


def test_values_that_are_not_finite_and_single_points() -> None:
    assert "no finite value" in line_chart([(1.0, math.nan)], str)
    assert "polyline" in line_chart([(1.0, 2.0)], str)
    assert "data:image/png" in heat_map([[1.0, math.nan], [2.0, 1.0]], 2)


def test_a_long_line_is_thinned_and_keeps_its_extremes() -> None:
    points = [(float(step), 100.0 if step == 5000 else math.sin(step)) for step in range(10_000)]
    drawn = line_chart(points, lambda value: f"{value:.0f}")
    assert drawn.count(",") < 1_000
    assert re.search(r",4\.\d\d", drawn)  # the peak, near the top


def test_two_runs_are_compared(tmp_path: Path) -> None:
    slow = write_run(tmp_path / "slow", times=lambda *_: {"forward": 0.2, "replicate": 0.1})
    fast = write_run(tmp_path / "fast", times=lambda *_: {"forward": 0.1, "replicate": 0.1})
    lines = comparison_lines(oc.why(slow), oc.why(fast))
    assert "run 2 takes 33% less time per sample than run 1" in lines
    assert next(line for line in lines if line.strip().startswith("forward")).split()[-2:] == ["-100.0", "ms"]


def test_a_run_whose_script_is_gone_is_explained_without_a_prediction(tmp_path: Path) -> None:
    diagnosis = oc.why(write_run(tmp_path))
    assert diagnosis.note.startswith("nothing was predicted: the run's script is not here")
    assert diagnosis.identity is None
    with pytest.raises(oc.OnecurveError, match="no run's folder"):
        oc.why(tmp_path / "other")
