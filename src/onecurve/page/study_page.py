"""The page of a study: what was tried, and what it led to."""

import math
from collections.abc import Sequence
from pathlib import Path

from onecurve.describe.tuning import TunedTrial, Tuning
from onecurve.describe.units import seconds_text
from onecurve.page.html import bar, document, escaped, legend, section, table
from onecurve.page.plot import Point, dot, placement, plot, polyline, step_labels, thinned, value_range
from onecurve.page.style import STYLE

_COLORS = {"finished": "line", "pruned": "other", "failed": "slow", "running": "update"}
_NAMES = [("second", "the best one"), ("line", "finished"), ("other", "pruned"), ("slow", "failed")]
_CUT_OFF = 3.0
"""Curves are cut off at so many times the distance between the best value and the middle one."""


def study_page(tuning: Tuning) -> str:
    """One page that needs no network."""
    name = Path(tuning.out).name or tuning.out
    sections = [
        section("Values of the trials", _history(tuning), legend(_NAMES), note=_note(tuning)),
        section("What makes the difference", _importance(tuning)),
        section("Arguments and values", _parallel(tuning), wide=True),
        section("Curves", _curves(tuning), note=f"{tuning.followed}, as far as each trial came", wide=True),
        section("Trials", _table(tuning), wide=True),
    ]
    content = f"{_verdict(tuning)}<div class=sections>{''.join(sections)}</div>"
    return document(f"{name}: onecurve tune", name, content, STYLE)


def _verdict(tuning: Tuning) -> str:
    best = tuning.best
    pruned = sum(trial.outcome == "pruned" for trial in tuning.trials)
    done = f"{len(tuning.trials)} trials, {pruned} pruned; {tuning.steps:,} training steps"
    rows = {"tried": done}
    if best is not None:
        rows = {"best": f"{tuning.objective} {best.value:.4g} in trial {best.number}", "run": tuning.command, **rows}
    content = "".join(f"<dt>{name}</dt><dd>{escaped(text)}</dd>" for name, text in rows.items())
    return f'<div class="verdict good"><dl>{content}</dl></div>'


def _note(tuning: Tuning) -> str:
    return f"{tuning.objective}; of trials that were pruned, the last {tuning.followed}"


def _history(tuning: Tuning) -> str:
    points = [(float(trial.number), _last_value(trial), trial) for trial in tuning.trials]
    finite = [(x, y, trial) for x, y, trial in points if math.isfinite(y)]
    if not finite:
        return "<p class=note>no finite value</p>"
    low, high = _shown_range([y for _, y, _ in finite], tuning.maximize)
    last = max(x for x, _, _ in finite)
    place = placement(0.0, last, low, high)
    dots = [
        dot((x, min(high, max(low, y))), place, _title(trial, tuning), _color(trial, tuning)) for x, y, trial in finite
    ]
    return plot("".join(dots), _labels(low, high), ("trial 0", f"{last:.0f}"), "values of the trials")


def _importance(tuning: Tuning) -> str:
    if not tuning.importance:
        return "<p class=note>not known: only one argument was searched, or few trials were finished</p>"
    rows = [(bar(name, share, "forward"), f"{share:.0%}") for name, share in tuning.importance.items()]
    return table(["argument", "share"], rows, numbers=1)


def _parallel(tuning: Tuning) -> str:
    """A line per trial, from its arguments to its value."""
    trials = [trial for trial in tuning.trials if math.isfinite(_last_value(trial))]
    if not trials:
        return "<p class=note>no finite value</p>"
    names = [*trials[0].arguments]
    scales = [_scale([trial.arguments[name] for trial in trials]) for name in names]
    low, high = _shown_range([_last_value(trial) for trial in trials], tuning.maximize)
    place = placement(0.0, float(len(names)), 0.0, 1.0)
    drawn = [f'<line class=grid x1="{100 * n / len(names):.2f}" x2="{100 * n / len(names):.2f}" y1=0 y2=100 />'
             for n in range(len(names) + 1)]  # fmt: skip
    for trial in reversed(trials):  # the best one is drawn last, on top
        heights = [scale[trial.arguments[name]] for name, scale in zip(names, scales, strict=True)]
        value = (min(high, max(low, _last_value(trial))) - low) / (high - low)
        line = polyline([*enumerate([*heights, value])], place, _color(trial, tuning))
        drawn.append(line.replace("/>", f"><title>{escaped(_title(trial, tuning))}</title></polyline>"))
    below = [f"{name} {_ends(trials, name)}" for name in names]
    return plot("".join(drawn), _labels(low, high), [*below, tuning.objective], "arguments and values", tall=True)


def _ends(trials: Sequence[TunedTrial], name: str) -> str:
    """The values at the lower and upper end of an axis."""
    values = sorted({trial.arguments[name] for trial in trials}, key=_order)
    return f"{values[0]} … {values[-1]}" if len(values) > 1 else values[0]


def _scale(texts: Sequence[str]) -> dict[str, float]:
    """The height of each value of an argument: in its order, as far apart as the numbers or their logarithms are."""
    values = sorted(set(texts), key=_order)
    numbers = [_order(value)[1] for value in values]
    if any(_order(value)[0] for value in values) or len(values) == 1:
        return {value: (n + 0.5) / len(values) for n, value in enumerate(values)}
    if numbers[0] > 0 and numbers[-1] / numbers[0] >= 10:
        numbers = [math.log(number) for number in numbers]
    return {
        value: (number - numbers[0]) / (numbers[-1] - numbers[0]) for value, number in zip(values, numbers, strict=True)
    }


def _order(text: str) -> tuple[bool, float, str]:
    """Numbers by their size, and texts after them."""
    try:
        return False, float(text), ""
    except ValueError:
        return True, 0.0, text


def _curves(tuning: Tuning) -> str:
    curves = [(trial, [point for point in trial.curve if math.isfinite(point[1])]) for trial in tuning.trials]
    values = [abs(value) for _, curve in curves for _, value in curve]
    if not values:
        return "<p class=note>no trial has come so far</p>"
    low, high = _shown_range(values, maximize=False)
    place = placement(0.0, float(tuning.trial_steps), low, high)
    drawn = []
    for trial, curve in reversed(curves):
        points: list[Point] = [(float(step), min(high, max(low, abs(value)))) for step, value in curve]
        drawn.append(polyline(thinned(points), place, _color(trial, tuning)))
    return plot("".join(drawn), _labels(low, high), step_labels(0, tuning.trial_steps), "curves", tall=True)


def _table(tuning: Tuning) -> str:
    rows = [
        (
            str(trial.number),
            escaped(" ".join(f"{name}={text}" for name, text in trial.arguments.items())),
            escaped(f"{trial.outcome}{': ' * bool(trial.note)}{trial.note}"),
            f"{trial.value:.4g}" if trial.value is not None else "",
            f"{trial.steps:,}",
            seconds_text(trial.seconds),
        )
        for trial in tuning.trials
    ]
    head = ["trial", "arguments", "outcome", escaped(tuning.objective), "steps", "time"]
    return f"<div class=scroll>{table(head, rows, numbers=3)}</div>"


def _last_value(trial: TunedTrial) -> float:
    if trial.value is not None:
        return trial.value
    return trial.curve[-1][1] if trial.curve else math.nan


def _shown_range(values: Sequence[float], maximize: bool) -> Point:
    """The values that matter: those of trials that go wrong are cut off."""
    ordered = sorted(values, reverse=maximize)
    best, middle = ordered[0], ordered[len(ordered) // 2]
    limit = best + _CUT_OFF * (middle - best)
    return value_range([value for value in values if (value >= limit if maximize else value <= limit)] or values)


def _color(trial: TunedTrial, tuning: Tuning) -> str:
    return "second" if trial is tuning.best else _COLORS[trial.outcome]


def _title(trial: TunedTrial, tuning: Tuning) -> str:
    arguments = " ".join(f"{name}={text}" for name, text in trial.arguments.items())
    return f"trial {trial.number}, {arguments}: {tuning.objective} {_last_value(trial):.4g} ({trial.outcome})"


def _labels(low: float, high: float) -> list[str]:
    return [f"{value:.4g}" for value in (high, (low + high) / 2, low)]
