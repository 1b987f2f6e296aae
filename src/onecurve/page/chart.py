"""Lines and stacked areas over steps."""

import math
import statistics
from collections.abc import Callable, Sequence

from onecurve.page.plot import MAX_BUCKETS, Point, dot, placement, plot, polyline, step_labels, thinned, value_range

_CUT_OFF = 2.5
"""Areas are cut off at so many times their median height, so that a pause does not hide the rest."""


def line_chart(
    points: Sequence[Point], text: Callable[[float], str], others: Sequence[Point] = (), title: str = ""
) -> str:
    """A line, and a second one with dots. `text`: formats a value."""
    finite = [point for point in points if math.isfinite(point[1])]
    dots = [point for point in others if math.isfinite(point[1])]
    if not finite and not dots:
        return "<p class=note>no finite value</p>"
    low, high = value_range([value for _, value in (*finite, *dots)])
    first, last = (limit(step for step, _ in (*finite, *dots)) for limit in (min, max))
    place = placement(first, last, low, high)
    drawn = [polyline(thinned(finite), place, "line")]
    if dots:
        drawn.append(polyline(dots, place, "second"))
        drawn += [dot(point, place, f"step {point[0]:,.0f}: {text(point[1])}") for point in dots[-MAX_BUCKETS:]]
    return plot(
        "".join(drawn), [text(value) for value in (high, (low + high) / 2, low)], step_labels(first, last), title
    )


def area_chart(
    parts: Sequence[tuple[float, Sequence[tuple[str, float]]]], text: Callable[[float], str], title: str
) -> str:
    """Areas on top of each other: for each part its last step, and the value of each group."""
    totals = [sum(value for _, value in values) for _, values in parts]
    high = min(max(totals), _CUT_OFF * statistics.median(totals)) or 1.0
    first, last = 0.0, max(parts[-1][0], 1.0)
    place = placement(first, last, 0.0, high)
    groups = [group for group, _ in parts[0][1]]
    bottoms = [0.0] * len(parts)
    drawn = []
    for index, group in enumerate(groups):
        tops = [bottom + values[index][1] for bottom, (_, values) in zip(bottoms, parts, strict=True)]
        if any(top > bottom for top, bottom in zip(tops, bottoms, strict=True)):
            drawn.append(_area(parts, bottoms, tops, place, group))
        bottoms = tops
    return plot("".join(drawn), [text(high), text(high / 2), "0"], step_labels(0, last), title, tall=True)


def _area(
    parts: Sequence[tuple[float, object]],
    bottoms: Sequence[float],
    tops: Sequence[float],
    place: Callable[[Point], str],
    group: str,
) -> str:
    """An area in stairs: a part has one value."""
    edges = [0.0, *(step for step, _ in parts)]
    above = [place((edge, top)) for n, top in enumerate(tops) for edge in (edges[n], edges[n + 1])]
    below = [place((edge, bottom)) for n, bottom in enumerate(bottoms) for edge in (edges[n], edges[n + 1])]
    return f'<polygon class="c-{group}" points="{" ".join([*above, *reversed(below)])}"/>'
