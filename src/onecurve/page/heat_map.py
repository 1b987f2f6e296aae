"""Ranks over the steps of a run: how much longer a rank works than the others."""

import base64
import math
import statistics
import struct
import zlib
from collections.abc import Sequence

from onecurve.page.html import escaped

_FULL_COLOR = 1.0
"""A rank that takes this much longer than the median has the full color."""
_RED, _GREEN, _BLUE = 224, 101, 60


def heat_map(rows: Sequence[Sequence[float]], last_step: int) -> str:
    """One row per rank, one column per part of the run; the values are seconds."""
    if not rows or not rows[0]:
        return "<p class=note>no steps</p>"
    medians = [_median([row[column] for row in rows if column < len(row)]) for column in range(len(rows[0]))]
    pixels = [[_alpha(value, medians[n]) for n, value in enumerate(row)] for row in rows]
    image = base64.b64encode(_png(pixels)).decode()
    first, last = "rank 0", f"rank {len(rows) - 1}"
    side = f"<span>{first}</span>" + (f"<span>{last}</span>" if len(rows) > 1 else "")
    return (
        f"<div class=plot><div class=y>{side}</div>"
        f'<img class=heat alt="{escaped(first)} to {escaped(last)} over the steps" src="data:image/png;base64,{image}">'
        f"<div class=x><span>step 1</span><span>{last_step:,}</span></div></div>"
    )


def _median(values: Sequence[float]) -> float:
    finite = [value for value in values if math.isfinite(value)]
    return statistics.median(finite) if finite else math.nan


def _alpha(value: float, median: float) -> int:
    if not math.isfinite(value) or not median > 0:
        return 0
    return round(255 * min(1.0, max(0.0, (value / median - 1) / _FULL_COLOR)))


def _png(alphas: Sequence[Sequence[int]]) -> bytes:
    """An image of one color with these opacities, so that it suits any background."""
    height, width = len(alphas), len(alphas[0])
    rows = [bytes([0, *(part for alpha in row for part in (_RED, _GREEN, _BLUE, alpha))]) for row in alphas]

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"".join(rows), 9)), chunk(b"IEND", b"")]
    )
