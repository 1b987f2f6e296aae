"""Formats the result of `onecurve plan`: text for the terminal, plain data for JSON, and an editable plan.toml."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from onecurve.describe.advice import Advice
from onecurve.describe.cluster import HostGroup
from onecurve.describe.convert import to_plain, to_toml
from onecurve.describe.estimate import Estimate
from onecurve.describe.plan import Plan
from onecurve.describe.units import (
    bytes_text,
    count_text,
    hours_text,
    money_text,
    rate_text,
    seconds_text,
    with_error,
)

_BAR_WIDTH = 30
_MIN_SHOWN_FRACTION = 0.005
"""Terms below this fraction of the total are combined into one line."""


def advice_lines(advice: Advice) -> list[str]:
    """The chosen plan with its predicted time and memory, why other plans lost, and cheaper alternatives."""
    head = f"{advice.script}: {count_text(advice.parameters)} parameters, {advice.global_batch:,} samples per step"
    lines = [f"{head}, on {advice.cluster}", ""]
    if advice.best is None:
        lines.append("the job does not fit on this cluster")
        lines += [f"  {hint}" for hint in (advice.faster_precision, *advice.hints) if hint]
        return [*lines, "", *_rejected(advice)]
    best = advice.best
    lines += _summary(advice, best)
    lines += ["", *_bars("time per step", best.seconds, seconds_text)]
    lines += ["", *_bars("memory per rank", best.memory, bytes_text, best.available_bytes)]
    lines += ["", *_rejected(advice)]
    if advice.frontier:
        lines += ["", "slower plans that use less memory or fewer devices"]
        lines += _table([_choice(estimate, best) for estimate in advice.frontier])
    lines += [f"note: {hint}" for hint in advice.hints]
    return lines


def _summary(advice: Advice, best: Estimate) -> list[str]:
    step = with_error(seconds_text(best.step), best.error)
    samples_per_second = best.plan.global_batch / best.step
    speed = f"{samples_per_second:,.{0 if samples_per_second >= 10 else 1}f} samples/s"
    memory = f"{bytes_text(best.memory_bytes)} of {bytes_text(best.available_bytes)} per rank"
    reserved = best.reserved_bytes / (best.reserved_bytes + best.available_bytes)
    lines = [f"plan    {best.plan}"]
    if advice.choice:
        lines.append(f"choice  {advice.choice}")
    lines.append(f"step    {step}, {speed}, {best.utilization:.0%} of peak FLOP/s")
    if advice.faster_precision:
        lines.append(f"bf16    {advice.faster_precision}")
    if advice.tokens is not None:
        lines.append(
            f"tokens  {_tokens_per_second(advice, best):,.0f} per second: {advice.tokens.per_sample:,} per sample, "
            f"{advice.tokens.counted_in} (padding included)"
        )
    lines += [
        f"run     {hours_text(best.hours)} for {best.steps:,} steps on {_ranks(best)}{_price(best)}",
        f"memory  {memory}; {bytes_text(best.reserved_bytes)} ({reserved:.0%} of the device) is reserved",
        *_links(advice),
    ]
    if best.plan.changes_numerics:
        lines.append("note    numerical results differ from those of fp32")
    return lines


def _tokens_per_second(advice: Advice, estimate: Estimate) -> float | None:
    return None if advice.tokens is None else advice.tokens.per_sample * advice.global_batch / estimate.step


def _links(advice: Advice) -> list[str]:
    """The assumed bandwidths of the links, and where they come from."""
    groups, constants = advice.machines.groups, advice.machines.constants
    several_hosts = sum(group.count for group in groups) > 1

    def text(group: HostGroup) -> str:
        owner = f"{group.device.name}: " if len(groups) > 1 else ""
        links = [("within a host", group.intra_host.bandwidth, constants.intra_host_efficiency)]
        if several_hosts:
            links.append(("between hosts", group.inter_host.bandwidth, constants.inter_host_efficiency))
        return owner + ", ".join(
            f"{rate_text(bandwidth)}B/s {where} (collectives reach {efficiency:.0%})"
            for where, bandwidth, efficiency in links
        )

    if advice.machines.devices == 1:
        return []
    source = f"; from {advice.machines_source}" if advice.machines_source else ""
    return [f"links   {'; '.join(map(text, groups))}, per device and direction{source}"]


def _ranks(estimate: Estimate) -> str:
    if estimate.threads:
        return f"{_plural(estimate.devices, 'process', 'es')} × {_plural(estimate.threads, 'thread')}"
    return _plural(estimate.devices, "device")


def _plural(count: int, noun: str, ending: str = "s") -> str:
    return f"{count:,} {noun}{ending if count != 1 else ''}"


def _price(estimate: Estimate) -> str:
    return "" if estimate.cost is None else f", {with_error(money_text(estimate.cost), estimate.error)}"


def _bars(
    title: str, terms: Mapping[str, float], text: Callable[[float], str], capacity: float | None = None
) -> list[str]:
    """One line per term, largest first, with a bar for its fraction of the capacity, or of the sum if there is none."""
    used = sum(terms.values())
    total = capacity or used
    shown = {name: value for name, value in terms.items() if value > _MIN_SHOWN_FRACTION * total}
    small = used - sum(shown.values())
    rows = sorted(shown.items(), key=lambda term: -term[1])
    if small > 0:
        rows.append(("small terms", small))
    lines = [title]
    for name, value in rows:
        bar = "█" * round(_BAR_WIDTH * value / total) or "▏"
        lines.append(f"  {name:<12}{text(value):>10}  {value / total:>4.0%}  {bar}")
    if capacity is not None:
        free = capacity - used
        lines.append(f"  {'free':<12}{text(free):>10}  {free / total:>4.0%}  {'░' * round(_BAR_WIDTH * free / total)}")
    return lines


def _rejected(advice: Advice) -> list[str]:
    if not advice.runners_up:
        return []
    rows = [(str(runner_up.estimate.plan), runner_up.reason) for runner_up in advice.runners_up]
    return ["rejected plans", *_table(rows)]


def _choice(estimate: Estimate, best: Estimate) -> tuple[str, str]:
    words = [f"{seconds_text(estimate.step)} per step", f"{bytes_text(estimate.memory_bytes)} per rank"]
    if estimate.devices != best.devices:
        words.append(_ranks(estimate))
    if estimate.cost is not None:
        words.append(money_text(estimate.cost))
    return str(estimate.plan), ", ".join(words)


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(first) for first, _ in rows)
    return [f"  {first:<{width}}  {second}" for first, second in rows]


def advice_plain(advice: Advice) -> dict[str, Any]:
    """The advice as plain data, with every term of each estimate."""
    return {
        "script": advice.script,
        "cluster": advice.cluster,
        "parameters": advice.parameters,
        "links": [
            {
                "device": group.device.name,
                "intra_host_bandwidth": group.intra_host.bandwidth,
                "inter_host_bandwidth": group.inter_host.bandwidth,
            }
            for group in advice.machines.groups
        ],
        "links_source": advice.machines_source,
        "fits": advice.best is not None,
        "best": None if advice.best is None else _plain(advice.best),
        "choice": advice.choice,
        "tokens_per_sample": None if advice.tokens is None else advice.tokens.per_sample,
        "tokens_per_second": None if advice.best is None else _tokens_per_second(advice, advice.best),
        "faster_precision": advice.faster_precision,
        "runners_up": [{**_plain(runner_up.estimate), "reason": runner_up.reason} for runner_up in advice.runners_up],
        "frontier": [_plain(estimate) for estimate in advice.frontier],
        "hints": list(advice.hints),
    }


def _plain(estimate: Estimate) -> dict[str, Any]:
    return {
        "plan": str(estimate.plan),
        "devices": estimate.devices,
        "step_seconds": estimate.step,
        "error": estimate.error,
        "seconds": estimate.seconds,
        "memory_bytes": estimate.memory_bytes,
        "available_bytes": estimate.available_bytes,
        "reserved_bytes": estimate.reserved_bytes,
        "memory": estimate.memory,
        "fits": estimate.fits,
        "utilization": estimate.utilization,
        "hours": estimate.hours,
        "cost": estimate.cost,
    }


def start_lines(advice: Advice, command: str) -> list[str]:
    """How to start the chosen plan. `command`: the arguments of onecurve, such as `run train.py --plan plan.toml`."""
    assert advice.best is not None
    hosts = sum(count for count, _ in advice.machines.placement(advice.best.devices))
    if hosts == 1:
        return [f"train with: onecurve {command}"]
    return [
        f"train on {hosts:,} hosts: start this on each; they need the same files, a shared folder for --out and a "
        "private network",
        f"  onecurve {command} --hosts {hosts}",
    ]


_COMMENTS = {
    "micro_batch": "samples per data-parallel rank and round",
    "rounds": "gradient-accumulation rounds per step",
    "precision": "dtype of forward and backward; master weights stay in fp32",
    "reduce": "reduce gradients once per 'step' or after every 'round'",
    "sharding": "'zero3' frees parameters after forward and gathers them again for backward, 'zero2' keeps them",
    "recompute": "activations that backward recomputes: 'none', 'selective' (all but matmuls and attention), 'full'",
    "threads": "CPU cores per rank",
    "schedule": "pipeline schedule: '1f1b', 'gpipe', 'interleaved' or 'zero-bubble'",
    "sequence": "sequence parallelism: activations between blocks are sharded over the 'tensor' axis",
    "stages": "blocks per pipeline stage",
    "tables": "rows of embedding tables, by name pattern: 'replicated' on all ranks, 'row_sharded' or 'served'",
    "pipeline": "pipeline-parallel ranks",
    "replicate": "data-parallel replicas",
    "shard": "data-parallel ranks that shard parameters, gradients and optimizer state",
    "tensor": "tensor-parallel ranks, which split each matrix product",
}
"""Comments of the fields in plan.toml."""


def plan_file(advice: Advice) -> str:
    """The best plan as TOML, with a comment on each field and the prediction at the top."""
    assert advice.best is not None
    best = advice.best
    head = [
        f"# {advice.script} on {advice.cluster}: {best.plan}",
        f"# Predicted: {with_error(seconds_text(best.step), best.error)} per step, "
        f"{bytes_text(best.memory_bytes)} of {bytes_text(best.available_bytes)} per rank.",
        "# You may edit this file; `onecurve check` verifies that the plan still computes the same as one device.",
        "",
    ]
    fields = to_toml(_fields_to_write(best.plan)).splitlines()
    return "\n".join([*head, *map(_with_comment, fields), ""])


def _with_comment(line: str) -> str:
    name, equals, _ = line.partition(" = ")
    comment = _COMMENTS.get(name)
    return f"{line}  # {comment}" if comment and equals and not line.endswith("[") else line


def _fields_to_write(plan: Plan) -> dict[str, Any]:
    """The fields that differ from the defaults, and those that are always written."""
    plain, defaults = to_plain(plan), to_plain(Plan())
    always = ("micro_batch", "rounds", "precision")
    fields = {name: value for name, value in plain.items() if name in always or value != defaults[name]}
    fields.pop("mesh", None)
    axes = {axis: degree for axis, degree in plain["mesh"].items() if degree > 1}
    fields = {"version": Plan.file_version, **fields}
    return {**fields, "mesh": axes} if axes else fields
