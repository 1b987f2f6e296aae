"""The page of a range test: the loss at each learning rate."""

import math
from pathlib import Path

from onecurve.describe.tuning import RangeTest
from onecurve.page.html import document, escaped, section
from onecurve.page.plot import Point, dot, placement, plot, polyline, thinned, value_range
from onecurve.page.style import STYLE


def range_page(test: RangeTest) -> str:
    """One page that needs no network."""
    name = Path(test.out).name or test.out
    low, high = value_range([loss for _, loss in test.points])
    place = placement(math.log(test.points[0][0]), math.log(test.points[-1][0]), low, high)
    points: list[Point] = [(math.log(rate), loss) for rate, loss in test.points]
    by_rate = dict(test.points)
    fastest = dot((math.log(test.fastest), by_rate[test.fastest]), place, f"{test.fastest:.3g}: falls fastest")
    middle = math.sqrt(test.points[0][0] * test.points[-1][0])
    below = [f"{test.argument} {test.points[0][0]:.3g}", f"{middle:.3g}", f"{test.points[-1][0]:.3g}"]
    labels = [f"{value:.4g}" for value in (high, (low + high) / 2, low)]
    chart = plot(polyline(thinned(points), place, "line") + fastest, labels, below, "loss by learning rate", tall=True)
    rows = {
        "fastest": f"the loss falls fastest at {test.argument}={test.fastest:.3g}",
        "lowest": f"it is lowest at {test.argument}={test.lowest:.3g}; larger rates make it grow",
    }
    verdict = "".join(f"<dt>{key}</dt><dd>{escaped(text)}</dd>" for key, text in rows.items())
    note = "smoothed training loss; the rate grows from step to step"
    content = f'<div class="verdict good"><dl>{verdict}</dl></div>{section("Loss", chart, note=note)}'
    return document(f"{name}: onecurve tune --range-test", name, content, STYLE)
