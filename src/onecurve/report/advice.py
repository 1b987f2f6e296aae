"""A plan and its reasons, for a person; and as a file that a person may edit."""

from collections.abc import Mapping, Sequence
from typing import Any

from onecurve.describe.advice import Advice
from onecurve.describe.convert import to_plain, to_toml
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.describe.units import bytes_text, count_text, hours_text, money_text, seconds_text

_WIDTH = 30
_SMALL = 0.005
"""Parts below this are told together."""


def advice_lines(advice: Advice) -> list[str]:
    head = f"{advice.script}: {count_text(advice.parameters)} parameters, {advice.global_batch:,} samples a step"
    lines = [f"{head}, on {advice.cluster}", ""]
    if advice.best is None:
        lines.append("does not fit")
        lines += [f"  {hint}" for hint in advice.hints]
        return [*lines, "", *_reasons(advice)]
    best = advice.best
    lines += _summary(best)
    lines += ["", *_bar("time of a step", best.seconds, seconds_text)]
    lines += ["", *_bar("memory of a rank", best.memory, bytes_text, best.available)]
    lines += ["", *_reasons(advice)]
    if advice.frontier:
        lines += ["", "with less memory, or on fewer devices"]
        lines += _table([_choice(each, best) for each in advice.frontier])
    lines += [f"note: {hint}" for hint in advice.hints]
    return lines


def _summary(best: Estimate) -> list[str]:
    step = f"{seconds_text(best.step)} ± {best.error:.0%}"
    per_second = best.plan.global_batch / best.step
    lines = [
        f"plan    {best.plan}",
        f"step    {step}, {per_second:,.{0 if per_second >= 10 else 1}f} samples/s, {best.utilization:.0%} of the peak",
        f"run     {hours_text(best.hours)} for {best.steps:,} steps on {_ranks(best)}{_money(best)}",
        f"memory  {bytes_text(best.used)} of {bytes_text(best.available)} per rank",
    ]
    if best.plan.changes_numerics:
        lines.append(f"numbers {best.plan.precision} computes other numbers than fp32")
    return lines


def _ranks(estimate: Estimate) -> str:
    if estimate.threads:
        return f"{_several(estimate.devices, 'process', 'es')} × {_several(estimate.threads, 'thread')}"
    return _several(estimate.devices, "device")


def _several(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{ending if count != 1 else ''}"


def _money(estimate: Estimate) -> str:
    return "" if estimate.money is None else f", {money_text(estimate.money)} ± {estimate.error:.0%}"


def _bar(title: str, parts: Mapping[str, float], text: Any, whole: float | None = None) -> list[str]:
    """One line per part, largest first, with its part of the whole drawn."""
    total = whole or sum(parts.values())
    shown = {name: value for name, value in parts.items() if value > _SMALL * total}
    rest = sum(parts.values()) - sum(shown.values())
    if rest > 0:
        shown["the rest"] = rest
    lines = [title]
    for name, value in sorted(shown.items(), key=lambda each: -each[1] if each[0] != "the rest" else 1):
        drawn = "█" * round(_WIDTH * value / total) or "▏"
        lines.append(f"  {name:<12}{text(value):>10}  {value / total:>4.0%}  {drawn}")
    if whole is not None:
        free = whole - sum(parts.values())
        lines.append(f"  {'free':<12}{text(free):>10}  {free / total:>4.0%}  {'░' * round(_WIDTH * free / total)}")
    return lines


def _reasons(advice: Advice) -> list[str]:
    if not advice.runners_up:
        return []
    return ["why not", *_table([(str(each.estimate.plan), each.reason) for each in advice.runners_up])]


def _choice(estimate: Estimate, best: Estimate) -> tuple[str, str]:
    words = [f"{seconds_text(estimate.step)} a step", f"{bytes_text(estimate.used)} per rank"]
    if estimate.devices != best.devices:
        words.append(_ranks(estimate))
    if estimate.money is not None:
        words.append(money_text(estimate.money))
    return str(estimate.plan), ", ".join(words)


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(first) for first, _ in rows)
    return [f"  {first:<{width}}  {second}" for first, second in rows]


def advice_plain(advice: Advice) -> dict[str, Any]:
    return {
        "script": advice.script,
        "cluster": advice.cluster,
        "parameters": advice.parameters,
        "fits": advice.best is not None,
        "best": None if advice.best is None else _plain(advice.best),
        "runners_up": [{**_plain(each.estimate), "reason": each.reason} for each in advice.runners_up],
        "frontier": [_plain(each) for each in advice.frontier],
        "hints": list(advice.hints),
    }


def _plain(estimate: Estimate) -> dict[str, Any]:
    return {
        "plan": str(estimate.plan),
        "devices": estimate.devices,
        "step_seconds": estimate.step,
        "error": estimate.error,
        "seconds": estimate.seconds,
        "memory_bytes": estimate.used,
        "available_bytes": estimate.available,
        "memory": estimate.memory,
        "fits": estimate.fits,
        "utilisation": estimate.utilization,
        "hours": estimate.hours,
        "money": estimate.money,
    }


_COMMENTS = {
    "micro_batch": "samples that a data-parallel rank takes per round",
    "rounds": "of which a step has so many",
    "precision": "what is computed in; weights stay in fp32",
    "reduce": "when gradients are summed: 'step', or after every 'round'",
    "sharding": "'zero3' gathers parameters again for backward, 'zero2' keeps them",
    "recompute": "what backward computes again: 'none', 'selective', 'full'",
    "schedule": "in which order stages take the rounds",
    "sequence": "activations between blocks cut along the sequence over 'tensor'",
    "stages": "blocks of each pipeline stage",
    "pipeline": "stages, one after the other",
    "replicate": "whole copies",
    "shard": "ranks that share parameters, gradients and optimizer state",
    "tensor": "ranks that share each product",
}


def plan_file(advice: Advice) -> str:
    """The plan as TOML, with what it means and what was predicted for it."""
    assert advice.best is not None
    best = advice.best
    head = [
        f"# {advice.script} on {advice.cluster}: {best.plan}",
        f"# Predicted: {seconds_text(best.step)} ± {best.error:.0%} a step, "
        f"{bytes_text(best.used)} of {bytes_text(best.available)} per rank.",
        "# Edit it as you like; `onecurve check` tells whether it still computes what one device computes.",
        "",
    ]
    return "\n".join([*head, *(_commented(line) for line in to_toml(_changed(best.plan)).splitlines()), ""])


def _commented(line: str) -> str:
    name = line.partition(" = ")[0]
    comment = _COMMENTS.get(name)
    return f"{line}  # {comment}" if comment and " = " in line and not line.endswith("[") else line


def _changed(plan: Plan) -> dict[str, Any]:
    """Without what is as it is by default."""
    plain, usual = to_plain(plan), to_plain(Plan())
    kept = ("micro_batch", "rounds", "precision")
    found = {name: value for name, value in plain.items() if name in kept or value != usual[name]}
    found.pop("mesh", None)
    axes = {axis: degree for axis, degree in plain["mesh"].items() if degree > 1}
    return {**found, "mesh": axes} if axes else found
