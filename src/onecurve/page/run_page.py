"""The page of a run, section by section."""

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from onecurve.describe.diagnosis import Diagnosis
from onecurve.describe.record import TraceRecord
from onecurve.describe.units import bytes_text, count_text, counted, rate_text, seconds_text
from onecurve.diagnose.history import RunHistory
from onecurve.page.chart import area_chart, line_chart
from onecurve.page.heat_map import heat_map
from onecurve.page.html import bar, document, escaped, legend, section, table
from onecurve.page.style import GROUPS, STYLE, group_of
from onecurve.page.timeline import timeline
from onecurve.report.why import CAUSES, WALL, measured_and_predicted, tried_lines, verdict_lines

_MAX_EVENTS = 200
_MIN_SHARE = 0.002


def run_page(diagnosis: Diagnosis, history: RunHistory, traces: Mapping[int, TraceRecord], step: int) -> str:
    """The whole page. `traces`: of some ranks, in step `step`; they may be empty."""
    name = Path(diagnosis.folder).name or diagnosis.folder
    sections = [
        *_curves(history),
        _causes_over_steps(history),
        _step_times(diagnosis),
        _wall_times(diagnosis),
        _heat_map(history),
        _timeline(traces, step),
        _memory(diagnosis),
        _identity(diagnosis),
        _events(history),
    ]
    content = (
        f"<p class=soft>{escaped(_subtitle(diagnosis))}</p>{_verdict(diagnosis)}{_tiles(diagnosis, history)}"
        f"<div class=sections>{''.join(sections)}</div>"
    )
    return document(f"{name}: onecurve why", name, content, STYLE)


def _subtitle(diagnosis: Diagnosis) -> str:
    ranks = f"{counted(diagnosis.ranks, f'{diagnosis.device} rank')}"
    hosts = f" on {counted(diagnosis.hosts, 'host')}"
    done = f"{diagnosis.steps:,} of {diagnosis.steps_planned:,} steps"
    return f"{diagnosis.plan} · {ranks}{hosts} · {done}{' · in progress' * diagnosis.in_progress}"


def _verdict(diagnosis: Diagnosis) -> str:
    rows = "".join(
        f"<dt>{escaped(line.split(None, 1)[0])}</dt><dd>{escaped(line.split(None, 1)[1])}</dd>"
        for line in (*verdict_lines(diagnosis), *tried_lines(diagnosis))
    )
    others = "".join(f"<li>{escaped(f'{found.limit}: {found.change}')}</li>" for found in diagnosis.findings[1:])
    more = f"<p class=note>also</p><ul class=note>{others}</ul>" if others else ""
    note = f"<p class=note>{escaped(diagnosis.note)}</p>" if diagnosis.note else ""
    good = "" if diagnosis.findings else " good"
    return f'<div class="verdict{good}"><dl>{rows}</dl>{more}{note}</div>'


def _tiles(diagnosis: Diagnosis, history: RunHistory) -> str:
    tiles = {
        "loss": f"{history.columns.loss[-1]:.4f}",
        "time of a step": seconds_text(diagnosis.times.total),
        "samples per second": f"{diagnosis.samples_per_second:,.0f}",
    }
    if diagnosis.tokens_per_second is not None:
        tiles["tokens per second"] = f"{diagnosis.tokens_per_second:,.0f}"
    if diagnosis.utilization is not None:
        tiles["of the device's peak FLOP/s"] = f"{diagnosis.utilization:.0%}"
    if diagnosis.speedup is not None and diagnosis.ranks > 1:
        tiles[f"speed-up with {diagnosis.ranks:,} ranks"] = f"{diagnosis.speedup:.2f}"
    tiles["wall time"] = seconds_text(sum(diagnosis.wall.values()))
    cells = "".join(
        f"<div><b>{escaped(value)}</b><span class=soft>{escaped(name)}</span></div>" for name, value in tiles.items()
    )
    return f"<div class=tiles>{cells}</div>"


def _curves(history: RunHistory) -> list[str]:
    columns = history.columns
    evaluations = [(float(record.step), record.loss) for record in history.evaluations if record.kind == "evaluation"]

    def points(values: Sequence[float]) -> list[tuple[float, float]]:
        return [(float(step), value) for step, value in zip(columns.step, values, strict=True)]

    names = [("line", "training")] + ([("second", "evaluation")] if evaluations else [])
    curves = [section("Loss", line_chart(points(columns.loss), _number, evaluations, "loss"), legend(names))]
    for metric in dict.fromkeys(name for record in history.evaluations for name in record.metrics):
        values = [(float(record.step), record.metrics.get(metric, math.nan)) for record in history.evaluations]
        curves.append(section(f"Evaluation: {metric}", line_chart((), _number, values, metric)))
    curves.append(section("Learning rate", line_chart(points(columns.lr), _number, title="learning rate")))
    return [
        *curves,
        section("Gradient norm", line_chart(points(columns.gradient_norm), _number, title="gradient norm")),
    ]


def _causes_over_steps(history: RunHistory) -> str:
    parts, step = [], 0
    for steps, seconds in history.causes:
        step += steps
        sums = dict.fromkeys(GROUPS, 0.0)
        for cause, value in seconds.items():
            sums[group_of(cause)] += value / steps
        parts.append((float(step), list(sums.items())))
    shown = [group for group in GROUPS if any(dict(values)[group] > 0 for _, values in parts)]
    return section(
        "Time of a step by cause",
        area_chart(parts, seconds_text, "time of a step by cause"),
        legend((group, GROUPS[group][0]) for group in shown),
        note="Rank 0, over the run. Waiting for slower ranks is in the communication. Long pauses are cut off.",
        wide=True,
    )


def _step_times(diagnosis: Diagnosis) -> str:
    total = diagnosis.times.total
    rows = [
        (
            bar(CAUSES.get(cause, cause), measured / total if total else 0.0, group_of(cause)),
            seconds_text(measured),
            f"{measured / total if total else 0.0:.1%}",
            seconds_text(predicted) if predicted else "",
        )
        for cause, (measured, predicted) in measured_and_predicted(diagnosis).items()
        if max(measured, predicted) > _MIN_SHARE * total
    ]
    predicted = sum(diagnosis.predicted.values())
    rows.append(("<b>total</b>", seconds_text(total), "100.0%", seconds_text(predicted) if predicted else ""))
    note = f"Mean over ranks and {diagnosis.counted_steps:,} steps, without the first ones."
    return section("Where a step's time goes", table(("cause", "measured", "", "predicted"), rows, 3), note=note)


def _wall_times(diagnosis: Diagnosis) -> str:
    total = sum(diagnosis.wall.values())
    rows = [
        (
            bar(WALL.get(cause, cause), value / total, _WALL_GROUPS.get(cause, "other")),
            seconds_text(value),
            f"{value / total:.1%}",
        )
        for cause, value in sorted(diagnosis.wall.items(), key=lambda item: -item[1])
        if value > _MIN_SHARE * total
    ]
    return section("Where the run's time went", table(("cause", "measured", ""), rows, 2))


_WALL_GROUPS = {
    "steps": "forward",
    "first_step": "backward",
    "lost": "slow",
    "recovery": "slow",
    "machines": "slow",
    "evaluation": "pause",
    "checkpoint": "pause",
    "audit": "pause",
}


def _heat_map(history: RunHistory) -> str:
    if len(history.ranks) < 2:
        return ""
    return section(
        "Ranks over the steps",
        heat_map([rank.own for rank in history.ranks], history.columns.step[-1]),
        note="Own work of each rank, without waiting for others. Colored if it takes longer than the median; the full "
        "color is twice as long.",
    )


def _timeline(traces: Mapping[int, TraceRecord], step: int) -> str:
    if not traces:
        return ""
    return section(
        f"Step {step:,} on a time line", timeline(traces), note="Clocks are aligned at the step's end.", wide=True
    )


def _memory(diagnosis: Diagnosis) -> str:
    if not diagnosis.memory:
        return ""
    peak = sum(diagnosis.memory.values())
    rows = [
        (
            bar(name, value / peak, _MEMORY_GROUPS.get(name, "other")),
            bytes_text(value),
            bytes_text(diagnosis.predicted_memory[name]) if name in diagnosis.predicted_memory else "",
        )
        for name, value in sorted(diagnosis.memory.items(), key=lambda item: -item[1])
    ]
    predicted = sum(diagnosis.predicted_memory.values())
    rows.append(("<b>peak</b>", bytes_text(peak), bytes_text(predicted) if predicted else ""))
    note = f"Rank {diagnosis.memory_rank}, which uses the most, after its first step."
    return section("Memory", table(("component", "measured", "predicted"), rows, 2), note=note)


_MEMORY_GROUPS = {
    "weights": "forward",
    "gradients": "backward",
    "optimizer": "update",
    "activations": "communication",
    "process": "other",
}


def _identity(diagnosis: Diagnosis) -> str:
    identity = diagnosis.identity
    if identity is None:
        return ""
    formula = (
        f"{seconds_text(identity.seconds)} = {count_text(identity.work)}FLOP ÷ ({rate_text(identity.rate)}FLOP/s × "
        f"{identity.devices:,} × {identity.efficiency:.1%})"
    )
    rows = [
        (
            bar(factor.name, factor.measured, "forward"),
            f"{factor.measured:.1%}",
            f"{factor.predicted:.1%}" if factor.predicted is not None else "",
        )
        for factor in identity.factors
    ]
    return section(
        "Time = work ÷ (rate × devices × efficiency)",
        f"<p><code>{escaped(formula)}</code></p>",
        table(("factor of the efficiency", "measured", "predicted"), rows, 2),
    )


def _events(history: RunHistory) -> str:
    moments: list[tuple[float, str, str]] = [(event.time, event.event, event.text) for event in history.events]
    for generation in history.generations:
        record = generation.record
        if record is not None and record.generation > 1:
            took = seconds_text(sum(record.seconds.values()))
            text = f"{record.why}; went on from step {record.from_step:,} as {record.plan} after {took}"
            moments.append((record.time, f"generation {record.generation}", text))
        elif generation.start.generation == 1:
            moments.append(
                (generation.start.time, "started", f"{generation.start.plan}, {generation.start.ranks:,} ranks")
            )
    for evaluation in history.evaluations:
        metrics = "".join(f", {name} {value:.4g}" for name, value in evaluation.metrics.items())
        moments.append(
            (evaluation.time, evaluation.kind, f"step {evaluation.step:,}: loss {evaluation.loss:.4f}{metrics}")
        )
    moments.sort()
    rows = [
        (time.strftime("%m-%d %H:%M:%S", time.localtime(moment)), escaped(kind), escaped(text))
        for moment, kind, text in moments[-_MAX_EVENTS:]
    ]
    return section("Events", f'<div class="scroll events">{table(("time", "event", ""), rows, 0)}</div>', wide=True)


def _number(value: float) -> str:
    return f"{value:.3g}"
