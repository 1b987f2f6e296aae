"""What charts are made of: axes, lines, dots."""

import math
from collections.abc import Callable, Sequence

from onecurve.page.html import escaped

Point = tuple[float, float]

MAX_BUCKETS = 400
"""A line has at most two points for each: the smallest and the largest value of the steps in it."""
_ROOM = 0.05
"""Part of the height that is left free above and below a line."""


def plot(drawn: str, labels: Sequence[str], below: Sequence[str], title: str, tall: bool = False) -> str:
    """Axes around what is drawn. `labels`: beside it, from top to bottom. `below`: from left to right."""
    grid = "".join(f'<line class=grid x1=0 x2=100 y1="{y}" y2="{y}"/>' for y in (0, 50, 100))
    side = "".join(f"<span>{escaped(label)}</span>" for label in labels)
    foot = "".join(f"<span>{escaped(text)}</span>" for text in below)
    label = f'role=img aria-label="{escaped(title)}"'
    return (
        f'<div class="plot{" tall" * tall}"><div class=y>{side}</div>'
        f'<svg viewBox="0 0 100 100" preserveAspectRatio=none {label}>{grid}{drawn}</svg>'
        f"<div class=x>{foot}</div></div>"
    )


def polyline(points: Sequence[Point], place: Callable[[Point], str], color: str) -> str:
    return f'<polyline class="line s-{color}" points="{" ".join(map(place, points))}"/>' if points else ""


def step_labels(first: float, last: float) -> tuple[str, str]:
    return f"step {first:,.0f}", f"{last:,.0f}"


def dot(point: Point, place: Callable[[Point], str], title: str, color: str = "second") -> str:
    """`title`: shown where the mouse is."""
    x, y = place(point).split(",")
    label = f"<title>{escaped(title)}</title>"
    return f'<line class="dot s-{color}" x1="{x}" x2="{x}" y1="{y}" y2="{y}">{label}</line>'


def placement(first: float, last: float, low: float, high: float) -> Callable[[Point], str]:
    def place(point: Point) -> str:
        x = 100 * (point[0] - first) / (last - first) if last > first else 50.0
        y = 100 - 100 * (point[1] - low) / (high - low)
        return f"{x:.2f},{y:.2f}"

    return place


def value_range(values: Sequence[float]) -> Point:
    low, high = min(values), max(values)
    room = _ROOM * (high - low) or abs(high) * _ROOM or 1.0
    return low - room if low < 0 or low - room > 0 else 0.0, high + room


def thinned(points: Sequence[Point]) -> list[Point]:
    """The extremes of each bucket of neighbouring points, in their order."""
    size = math.ceil(len(points) / MAX_BUCKETS)
    if size <= 2:
        return list(points)
    kept = []
    for begin in range(0, len(points), size):
        bucket = points[begin : begin + size]
        extremes = {min(bucket, key=lambda point: point[1]), max(bucket, key=lambda point: point[1])}
        kept += sorted(extremes)
    return kept
