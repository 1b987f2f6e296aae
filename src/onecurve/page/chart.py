"""Lines and stacked areas over steps."""

import math
import statistics
from collections.abc import Callable, Sequence

from onecurve.page.html import escaped

Point = tuple[float, float]

_MAX_BUCKETS = 400
"""A line has at most two points for each: the smallest and the largest value of the steps in it."""
_CUT_OFF = 2.5
"""Areas are cut off at so many times their median height, so that a pause does not hide the rest."""
_ROOM = 0.05
"""Part of the height that is left free above and below a line."""


def line_chart(
    points: Sequence[Point], text: Callable[[float], str], others: Sequence[Point] = (), title: str = ""
) -> str:
    """A line, and a second one with dots. `text`: formats a value."""
    finite = [point for point in points if math.isfinite(point[1])]
    dots = [point for point in others if math.isfinite(point[1])]
    if not finite and not dots:
        return "<p class=note>no finite value</p>"
    low, high = _range([value for _, value in (*finite, *dots)])
    first, last = (limit(step for step, _ in (*finite, *dots)) for limit in (min, max))
    place = _placement(first, last, low, high)
    drawn = [_polyline(_thinned(finite), place, "line")]
    if dots:
        drawn.append(_polyline(dots, place, "second"))
        drawn += [_dot(point, place, text) for point in dots[-_MAX_BUCKETS:]]
    return _plot("".join(drawn), [text(value) for value in (high, (low + high) / 2, low)], (first, last), title)


def area_chart(
    parts: Sequence[tuple[float, Sequence[tuple[str, float]]]], text: Callable[[float], str], title: str
) -> str:
    """Areas on top of each other: for each part its last step, and the value of each group."""
    totals = [sum(value for _, value in values) for _, values in parts]
    high = min(max(totals), _CUT_OFF * statistics.median(totals)) or 1.0
    first, last = 0.0, max(parts[-1][0], 1.0)
    place = _placement(first, last, 0.0, high)
    groups = [group for group, _ in parts[0][1]]
    bottoms = [0.0] * len(parts)
    drawn = []
    for index, group in enumerate(groups):
        tops = [bottom + values[index][1] for bottom, (_, values) in zip(bottoms, parts, strict=True)]
        if any(top > bottom for top, bottom in zip(tops, bottoms, strict=True)):
            drawn.append(_area(parts, bottoms, tops, place, group))
        bottoms = tops
    return _plot("".join(drawn), [text(high), text(high / 2), "0"], (0, last), title, tall=True)


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


def _plot(drawn: str, labels: Sequence[str], steps: Point, title: str, tall: bool = False) -> str:
    grid = "".join(f'<line class=grid x1=0 x2=100 y1="{y}" y2="{y}"/>' for y in (0, 50, 100))
    side = "".join(f"<span>{escaped(label)}</span>" for label in labels)
    foot = "".join(f"<span>{escaped(text)}</span>" for text in (f"step {steps[0]:,.0f}", f"{steps[1]:,.0f}"))
    label = f'role=img aria-label="{escaped(title)}"'
    return (
        f'<div class="plot{" tall" * tall}"><div class=y>{side}</div>'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio=none {label}>{grid}{drawn}</svg>'
        f"<div class=x>{foot}</div></div>"
    )


def _polyline(points: Sequence[Point], place: Callable[[Point], str], color: str) -> str:
    return f'<polyline class="line s-{color}" points="{" ".join(map(place, points))}"/>' if points else ""


def _dot(point: Point, place: Callable[[Point], str], text: Callable[[float], str]) -> str:
    x, y = place(point).split(",")
    label = f"<title>step {point[0]:,.0f}: {escaped(text(point[1]))}</title>"
    return f'<line class="dot s-second" x1="{x}" x2="{x}" y1="{y}" y2="{y}">{label}</line>'


def _placement(first: float, last: float, low: float, high: float) -> Callable[[Point], str]:
    def place(point: Point) -> str:
        x = 100 * (point[0] - first) / (last - first) if last > first else 50.0
        y = 100 - 100 * (point[1] - low) / (high - low)
        return f"{x:.2f},{y:.2f}"

    return place


def _range(values: Sequence[float]) -> Point:
    low, high = min(values), max(values)
    room = _ROOM * (high - low) or abs(high) * _ROOM or 1.0
    return low - room if low < 0 or low - room > 0 else 0.0, high + room


def _thinned(points: Sequence[Point]) -> list[Point]:
    """The extremes of each bucket of neighbouring points, in their order."""
    size = math.ceil(len(points) / _MAX_BUCKETS)
    if size <= 2:
        return list(points)
    thinned = []
    for begin in range(0, len(points), size):
        bucket = points[begin : begin + size]
        extremes = {min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])}
        thinned += sorted(extremes)
    return thinned
