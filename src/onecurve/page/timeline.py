"""The spans of one step, one row per rank."""

from collections.abc import Mapping

from onecurve.describe.record import TraceRecord
from onecurve.describe.units import seconds_text
from onecurve.page.html import escaped, legend
from onecurve.page.style import GROUPS, group_of

_MAX_SPANS = 400
"""Spans of a rank that are drawn; shorter ones are left out."""


def timeline(traces: Mapping[int, TraceRecord]) -> str:
    """The spans of some ranks in one step."""
    first = min(trace.begin for trace in traces.values())
    last = max(trace.begin + (trace.spans[-1][2] if trace.spans else 0.0) for trace in traces.values())
    total = max(last - first, 1e-9)
    rows = "".join(
        f"<span>rank {rank}</span>"
        f'<svg viewBox="0 0 1000 10" preserveAspectRatio=none>{_spans(trace, first, total)}</svg>'
        for rank, trace in traces.items()
    )
    used = dict.fromkeys(group_of(cause) for trace in traces.values() for cause, _, _ in trace.spans)
    names = legend((group, GROUPS[group][0]) for group in GROUPS if group in used)
    foot = f"<span></span><div class=x><span>0</span><span>{seconds_text(total)}</span></div>"
    return f"<div class=rows>{rows}{foot}</div>{names}"


def _spans(trace: TraceRecord, first: float, total: float) -> str:
    offset = trace.begin - first
    spans = sorted(trace.spans, key=lambda span: span[1] - span[2])[:_MAX_SPANS]
    return "".join(
        f'<rect class="c-{group_of(cause)}" x="{1000 * (offset + begin) / total:.2f}" y=0 '
        f'width="{1000 * (end - begin) / total:.2f}" height=10>'
        f"<title>{escaped(cause)}: {seconds_text(end - begin)}</title></rect>"
        for cause, begin, end in sorted(spans, key=lambda span: span[1])
    )
