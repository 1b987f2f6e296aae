"""The output of `onecurve why`: the verdict in three lines, then where the time went."""

from collections.abc import Mapping
from typing import Any

from onecurve.describe.convert import to_plain
from onecurve.describe.diagnosis import Diagnosis, Gain, TimeIdentity, TriedChange
from onecurve.describe.units import count_text, counted, rate_text, seconds_text

_BAR_WIDTH = 30
_MIN_SHOWN_FRACTION = 0.005
"""Causes below this fraction of the total are combined into one line."""

CAUSES = {
    "data": "waiting for data",
    "copy": "copies to the device",
    "forward": "forward",
    "backward": "backward",
    "recompute": "recomputation",
    "update": "optimizer",
    "other": "other",
    "step": "not timed",
    "host": "launching operations",
    "replicate": "communication: replicate",
    "shard": "communication: shard",
    "tensor": "communication: tensor",
    "pipeline": "communication: pipeline",
    "tables": "embedding tables",
    "batch_norm": "batch norm statistics",
    "sync": "end of step",
    "bubble": "pipeline bubble",
    "slowest": "waiting for the slowest rank",
    "uneven": "waiting: uneven samples",
    "interrupted": "waiting: interrupted ranks",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
    "audit": "audit",
    "workers": "asynchronous workers",
}
"""What the causes of a step's time are called."""
WALL = {
    "launch": "start: imports, processes",
    "plan": "start: planning",
    "job": "start: loading the job",
    "form": "start: process group, proof",
    "build": "start: building the model",
    "load": "start: loading the checkpoint",
    "first_step": "first step",
    "steps": "steps",
    "lost": "steps lost and done again",
    "recovery": "recovery",
    "machines": "waiting for machines",
    "evaluation": "evaluation",
    "checkpoint": "checkpoints",
    "audit": "audit",
    "weights": "writing the weights",
    "test": "test",
    "data": "end of the data",
    "exit": "end: processes",
}
"""What the causes of a run's wall time are called."""


def why_lines(diagnosis: Diagnosis) -> list[str]:
    """The verdict, then the times."""
    lines = [*verdict_lines(diagnosis), *tried_lines(diagnosis), "", _run_line(diagnosis), ""]
    times = diagnosis.times.by_cause
    lines += _table("time of a step", times, diagnosis.predicted, CAUSES, diagnosis.times.total)
    lines += ["", *_table("time of the run", diagnosis.wall, {}, WALL, sum(diagnosis.wall.values()))]
    if diagnosis.identity is not None:
        lines += ["", *_identity_lines(diagnosis.identity)]
    lines += ["", *_speed_lines(diagnosis)]
    if len(diagnosis.findings) > 1:
        lines += ["", "also"]
        lines += [f"  {finding.limit}: {finding.change} ({_gain(finding.gain)})" for finding in diagnosis.findings[1:]]
    return [*lines, *(["", f"note: {diagnosis.note}"] if diagnosis.note else [])]


def verdict_lines(diagnosis: Diagnosis) -> list[str]:
    """What limits the run, what a change would gain, and the change: three lines."""
    if not diagnosis.findings:
        times = diagnosis.times
        largest = max(times.by_cause, key=lambda cause: times.by_cause[cause])
        computing = sum(times.own.get(cause, 0.0) for cause in ("forward", "backward")) / times.total
        return [
            "limit   none found: no known change would save much time",
            f"gain    {computing:.0%} of a step is forward and backward; the largest cause is "
            f"{CAUSES.get(largest, largest)}, {times.by_cause[largest] / times.total:.0%}",
            "change  none",
        ]
    finding, step = diagnosis.findings[0], diagnosis.times.total
    after = step * (1 - finding.gain.expected)
    return [
        f"limit   {finding.limit}",
        f"gain    {_gain(finding.gain)}: {seconds_text(step)} → {seconds_text(after)} per step",
        f"change  {finding.change}",
    ]


def tried_lines(diagnosis: Diagnosis) -> list[str]:
    """The changes that were tried, each with its measured and its predicted gain."""
    return [f"trial   {tried.change}: {_outcome(tried)}" for tried in diagnosis.tried]


def _outcome(tried: TriedChange) -> str:
    if tried.measured is None:
        return f"no result: {tried.note}"
    saved = f"{tried.measured:.0%} less time" if tried.measured >= 0 else f"{-tried.measured:.0%} more time"
    times = f"{seconds_text(tried.before)} → {seconds_text(tried.after)} per step"
    return f"{saved} in {tried.steps} steps ({times}); predicted: {_gain(tried.predicted)}"


def comparison_lines(first: Diagnosis, second: Diagnosis) -> list[str]:
    """Two runs side by side: what differs in the time of a step, the largest difference first."""
    before, after = first.times, second.times
    per_sample = (before.total / _samples(first), after.total / _samples(second))
    lines = [f"1  {_run_line(first)}", f"2  {_run_line(second)}", ""]
    faster, slower = (2, 1) if per_sample[1] < per_sample[0] else (1, 2)
    saved = 1 - min(per_sample) / max(per_sample)
    lines.append(
        f"run {faster} takes {saved:.0%} less time per sample than run {slower}"
        if saved >= _MIN_SHOWN_FRACTION
        else "both take the same time per sample"
    )
    lines += ["", f"{'time of a step':<32}{'run 1':>12}{'run 2':>12}{'difference':>14}"]
    causes = dict.fromkeys([*before.by_cause, *after.by_cause])
    pairs = {cause: (before.by_cause.get(cause, 0.0), after.by_cause.get(cause, 0.0)) for cause in causes}
    limit = _MIN_SHOWN_FRACTION * max(before.total, after.total)
    for cause, (a, b) in sorted(pairs.items(), key=lambda item: -abs(item[1][1] - item[1][0])):
        if max(a, b) > limit:
            lines.append(_compared(CAUSES.get(cause, cause), a, b))
    lines += [_compared("total", before.total, after.total), ""]
    for number, diagnosis in ((1, first), (2, second)):
        lines += [f"run {number}", *(f"  {line}" for line in verdict_lines(diagnosis))]
    return lines


def _samples(diagnosis: Diagnosis) -> float:
    """Samples of a step."""
    return diagnosis.samples_per_second * diagnosis.times.total or 1.0


def _compared(name: str, a: float, b: float) -> str:
    sign = "+" if b >= a else "-"
    return f"  {name:<30}{seconds_text(a):>12}{seconds_text(b):>12}{sign + seconds_text(abs(b - a)):>14}"


def why_plain(diagnosis: Diagnosis) -> dict[str, Any]:
    """The diagnosis as plain data."""
    return {**to_plain(diagnosis), "step_seconds": diagnosis.times.total, "efficiency": diagnosis.efficiency}


def _gain(gain: Gain) -> str:
    return f"{gain.expected:.0%} less time ({gain.low:.0%} to {gain.high:.0%})"


def _run_line(diagnosis: Diagnosis) -> str:
    ranks = counted(diagnosis.ranks, f"{diagnosis.device} rank")
    hosts = f" on {diagnosis.hosts:,} hosts" if diagnosis.hosts > 1 else ""
    done = f"{diagnosis.steps:,} of {diagnosis.steps_planned:,} steps"
    return f"{diagnosis.folder}: {diagnosis.plan}, {ranks}{hosts}, {done}{', in progress' * diagnosis.in_progress}"


def measured_and_predicted(diagnosis: Diagnosis) -> dict[str, tuple[float, float]]:
    """The measured and predicted seconds of a step by cause, the largest first."""
    measured, predicted = diagnosis.times.by_cause, _renamed(diagnosis.predicted)
    causes = sorted(dict.fromkeys([*measured, *predicted]), key=lambda cause: -measured.get(cause, 0.0))
    return {cause: (measured.get(cause, 0.0), predicted.get(cause, 0.0)) for cause in causes}


def _table(
    title: str, values: Mapping[str, float], predicted: Mapping[str, float], names: Mapping[str, str], total: float
) -> list[str]:
    """One line per cause, largest first, with the predicted value and a bar."""
    expected = _renamed(predicted)
    causes = {cause: values.get(cause, 0.0) for cause in dict.fromkeys([*values, *expected])}
    shown = {
        cause: value
        for cause, value in causes.items()
        if max(value, expected.get(cause, 0.0)) > _MIN_SHOWN_FRACTION * total
    }
    rows = sorted(shown.items(), key=lambda row: -row[1])
    if (small := sum(causes.values()) - sum(shown.values())) > 0:
        rows.append(("small causes", small))
    lines = [f"{title:<32}{'measured':>10}{'':>6}{'predicted' if predicted else ''}".rstrip()]
    for cause, value in rows:
        bar = "█" * round(_BAR_WIDTH * value / total) if total else ""
        forecast = f"{seconds_text(expected[cause]) if expected.get(cause) else '':>10}  " if predicted else ""
        lines.append(
            f"  {names.get(cause, cause):<30}{seconds_text(value):>10}{value / total:>5.0%}  {forecast}{bar}".rstrip()
        )
    forecast = f"{seconds_text(sum(predicted.values())):>10}" if predicted else ""
    lines.append(f"  {'total':<30}{seconds_text(total):>10}{1:>5.0%}  {forecast}".rstrip())
    return lines


def _renamed(predicted: Mapping[str, float]) -> dict[str, float]:
    """Predicted causes by the names of the measured ones: transfers between stages are measured with the bubble."""
    renamed: dict[str, float] = {}
    for cause, value in predicted.items():
        name = {"pipeline": "bubble", "host": "forward"}.get(cause, cause)
        renamed[name] = renamed.get(name, 0.0) + value
    return renamed


def _identity_lines(identity: TimeIdentity) -> list[str]:
    lines = [
        "time = work ÷ (rate of one device × devices × efficiency)",
        f"  {seconds_text(identity.seconds)} = {count_text(identity.work)}FLOP ÷ ({rate_text(identity.rate)}FLOP/s × "
        f"{identity.devices} × {identity.efficiency:.1%})",
        f"  {'efficiency, as a product':<48}{'measured':>9}  predicted",
    ]
    for factor in identity.factors:
        predicted = f"{factor.predicted:>9.1%}" if factor.predicted is not None else ""
        lines.append(f"    {factor.name:<46}{factor.measured:>9.1%}  {predicted}".rstrip())
    return lines


def _speed_lines(diagnosis: Diagnosis) -> list[str]:
    speed = f"{diagnosis.samples_per_second:,.1f} samples/s"
    if diagnosis.tokens_per_second is not None:
        speed += f", {diagnosis.tokens_per_second:,.0f} tokens/s"
    if diagnosis.speedup is not None and diagnosis.efficiency is not None and diagnosis.ranks > 1:
        speed += (
            f"; speed-up over one device {diagnosis.speedup:.2f} of {diagnosis.ranks} "
            f"(parallel efficiency {diagnosis.efficiency:.0%})"
        )
    if diagnosis.noise_scale is None:
        return [speed]
    return [speed, _noise_line(diagnosis.noise_scale, round(_samples(diagnosis)))]


def _noise_line(noise_scale: float, batch: int) -> str:
    if noise_scale > 2 * batch:
        advice = "a larger batch would need fewer steps"
    elif 2 * noise_scale < batch:
        advice = "a smaller batch would need fewer samples"
    else:
        advice = "the two are close, so keep the batch"
    return f"gradient noise scale {noise_scale:,.0f} samples, batch {batch:,}: {advice}"
