"""What a notebook shows of results: small tables and curves, with all styles inside."""

import math
from collections.abc import Sequence

from onecurve.describe.advice import Advice
from onecurve.describe.summary import RunSummary
from onecurve.describe.units import seconds_text
from onecurve.describe.verdict import CheckResult
from onecurve.page.html import escaped
from onecurve.page.plot import Point, placement, thinned, value_range

_WIDTH, _HEIGHT = 640, 220


def run_html(summary: RunSummary, losses: Sequence[Point], evaluations: Sequence[Point]) -> str:
    """How a run ended, and its loss curve."""
    facts = {
        "run": summary.out,
        "plan": summary.plan,
        "steps": f"{summary.steps:,} of {summary.steps_planned:,} ({summary.ended})",
        "loss": f"{summary.loss:.4g}",
        "time": f"{seconds_text(summary.seconds)}, {summary.samples_per_second:,.0f} samples/s",
    }
    if summary.evaluation is not None:
        facts["evaluation"] = f"loss {summary.evaluation.loss:.4g}"
    return _table([[name, value] for name, value in facts.items()]) + loss_curve(losses, evaluations)


def loss_curve(losses: Sequence[Point], evaluations: Sequence[Point]) -> str:
    """The loss by step as a line, and the loss of evaluations as dots; without those that are not finite."""
    losses, evaluations = ([each for each in points if math.isfinite(each[1])] for points in (losses, evaluations))
    points = [*losses, *evaluations]
    if not points:
        return "<p>no finite loss yet</p>"
    low, high = value_range([value for _, value in points])
    first, last = min(step for step, _ in points), max(step for step, _ in points)
    place = placement(first, last, low, high)

    def scaled(point: Point) -> str:
        x, y = map(float, place(point).split(","))
        return f"{x * _WIDTH / 100:.1f},{y * _HEIGHT / 100:.1f}"

    line = " ".join(map(scaled, thinned(losses)))
    dots = "".join(
        '<circle r="4" fill="#d9541e" cx="{}" cy="{}"><title>{}</title></circle>'.format(
            *scaled(point).split(","), f"step {point[0]:,.0f}: evaluation {point[1]:.4g}"
        )
        for point in evaluations
    )
    return (
        f'<svg width="{_WIDTH + 70}" height="{_HEIGHT + 30}" viewBox="-60 -8 {_WIDTH + 70} {_HEIGHT + 30}" role="img" '
        'aria-label="loss by step" font-family="sans-serif" font-size="11" fill="currentColor">'
        f'<path d="M0 0V{_HEIGHT}H{_WIDTH}" fill="none" stroke="currentColor" opacity="0.4"/>'
        f'<polyline points="{line}" fill="none" stroke="#2a6fdb" stroke-width="1.5"/>{dots}'
        f'<text x="-6" y="6" text-anchor="end">{high:.3g}</text><text x="-6" y="{_HEIGHT}" text-anchor="end">{low:.3g}'
        f'</text><text x="0" y="{_HEIGHT + 16}">step {first:,.0f}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT + 16}" text-anchor="end">{last:,.0f}</text></svg>'
    )


def advice_html(advice: Advice) -> str:
    """The best plan, and why those with other axes lost."""
    if advice.best is None:
        return "<p>no plan fits</p>" + _table([[hint] for hint in advice.hints])
    rows = [["plan", "time per step", "in all", ""]]
    compared = [(advice.best, "best"), *((each.estimate, each.reason) for each in advice.runners_up)]
    for estimate, reason in compared:
        times = (seconds_text(estimate.step), seconds_text(estimate.step * estimate.steps))
        rows.append([str(estimate.plan), *times, reason])
    return f"<p>{escaped(advice.cluster)}, {advice.parameters:,} parameters</p>" + _table(rows, head=True)


def check_html(result: CheckResult) -> str:
    """A verdict per plan."""
    rows = [["plan", "", "largest difference"]]
    rows += [[str(verdict.plan), verdict.outcome, f"{verdict.size:.1e}"] for verdict in result.verdicts]
    return _table(rows, head=True)


def progress_html(done: int, planned: int, text: str) -> str:
    """A bar."""
    share = 100 * done / planned if planned else 0
    return (
        f'<div style="width:{_WIDTH}px;max-width:100%"><div style="background:#8883;border-radius:4px">'
        f'<div style="background:#2a6fdb;width:{share:.1f}%;height:8px;border-radius:4px"></div></div>'
        f"<small>{escaped(text)}</small></div>"
    )


def _table(rows: Sequence[Sequence[str]], head: bool = False) -> str:
    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(f'<{tag} style="text-align:left">{escaped(cell)}</{tag}>' for cell in row)

    lines = [f"<tr>{cells(row, 'th' if head and number == 0 else 'td')}</tr>" for number, row in enumerate(rows)]
    return f"<table>{''.join(lines)}</table>"
