"""The output of `onecurve status`: a view of one run that is drawn again and again, or a list of runs."""

import math
from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from onecurve.describe.run_status import RankStatus, RunStatus
from onecurve.describe.units import bytes_text, counted, seconds_text

_SPARKS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 40
_BAR_WIDTH = 50
_MAX_RANKS = 16
"""Of more ranks, only the extremes are shown."""
_EXTREMES = 3
_STATE_STYLES = {"running": "bold green", "finished": "bold", "stopped": "bold yellow", "silent": "bold red"}


def status_view(status: RunStatus) -> RenderableType:
    """One run."""
    head = Text.assemble(
        (status.folder, "bold"), "  ", (status.state, _STATE_STYLES[status.state]), f"  {status.plan}, {_ranks(status)}"
    )
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("", ProgressBar(total=max(1, status.steps), completed=status.step, width=_BAR_WIDTH))
    for name, value in _facts(status).items():
        facts.add_row(name, Text(value))  # not markup: names may have brackets
    parts: list[RenderableType] = [head, facts]
    if status.ranks > 1:
        parts += [Text(""), _rank_table(status.rank_status)]
    if status.events:
        parts += [Text(""), *(Text(event, overflow="fold", style="dim") for event in status.events)]
    return Group(*parts)


def _facts(status: RunStatus) -> dict[str, str]:
    left = f", {seconds_text(status.seconds_left)} left" if status.seconds_left else ""
    epoch = f", epoch {status.epoch:.2f}" if status.epoch is not None else ""
    peak = f", {status.utilization:.1%} of peak FLOP/s" if status.utilization is not None else ""
    facts = {
        "step": f"{status.step:,} of {status.steps:,}{epoch}{left}",
        "loss": f"{status.loss:.4f}  {sparkline(status.losses)}",
        "rate": f"{status.samples_per_second:,.1f} samples/s, {seconds_text(status.step_seconds)} per step, "
        f"lr {status.lr:.2e}{peak}",
        "memory": f"{bytes_text(status.memory)} at most on a rank",
    }
    if status.evaluation:
        facts["evaluation"] = status.evaluation
    facts["checkpoint"] = status.checkpoint or "none yet"
    facts["updated"] = f"{seconds_text(max(0.0, status.age))} ago"
    return facts


def _ranks(status: RunStatus) -> str:
    hosts = f" on {status.hosts} hosts" if status.hosts > 1 else ""
    return counted(status.ranks, f"{status.device} rank") + hosts


def _rank_table(ranks: Sequence[RankStatus]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for name in ("rank", "host", "step", "own work", "waiting", "data", "memory"):
        table.add_column(name, justify="left" if name == "host" else "right")
    shown = shown_ranks(ranks)
    for rank in shown:
        table.add_row(
            str(rank.rank),
            Text(rank.host),
            f"{rank.step:,}",
            seconds_text(rank.own_seconds),
            f"{rank.waiting:.0%}",
            f"{rank.data:.0%}",
            bytes_text(rank.memory),
        )
    if len(shown) < len(ranks):
        table.caption = f"{len(shown)} of {len(ranks):,} ranks: the slowest, the fastest, and those that are behind"
    return table


def shown_ranks(ranks: Sequence[RankStatus]) -> list[RankStatus]:
    """All ranks, or of many those with the most and the least work of their own, and those with the oldest records."""
    if len(ranks) <= _MAX_RANKS:
        return list(ranks)
    by_work = sorted(ranks, key=lambda rank: rank.own_seconds)
    behind = sorted(ranks, key=lambda rank: rank.step)[:_EXTREMES]
    chosen = {rank.rank: rank for rank in (*by_work[-_EXTREMES:][::-1], *by_work[:_EXTREMES], *behind)}
    return list(chosen.values())


def sparkline(values: Sequence[float]) -> str:
    """A line of blocks: `█▆▅▃▂▁`. Values that are not finite are left blank."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    step = max(1, math.ceil(len(values) / _SPARK_WIDTH))
    low, high = min(finite), max(finite)

    def block(value: float) -> str:
        if not math.isfinite(value):
            return " "
        height = (value - low) / (high - low) if high > low else 0.0
        return _SPARKS[min(len(_SPARKS) - 1, int(height * len(_SPARKS)))]

    return "".join(block(value) for value in values[::step])


def runs_table(runs: Sequence[RunStatus]) -> Table:
    """Several runs, one line each."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("run", overflow="fold")
    for name in ("state", "step", "loss", "rate", "left", "updated"):
        table.add_column(name, justify="left" if name == "state" else "right", no_wrap=True)
    for status in runs:
        table.add_row(
            Text(status.folder),
            Text(status.state, _STATE_STYLES[status.state]),
            f"{status.step:,}/{status.steps:,}",
            f"{status.loss:.4f}",
            f"{status.samples_per_second:,.0f}/s",
            seconds_text(status.seconds_left) if status.seconds_left else "",
            f"{seconds_text(max(0.0, status.age))} ago",
        )
    return table
