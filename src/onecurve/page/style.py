"""The colors and the layout of the page."""

from collections.abc import Mapping
from importlib.resources import files

COLORS: Mapping[str, tuple[str, str]] = {
    "forward": ("#4a86d8", "#6ea2ec"),
    "backward": ("#23508f", "#3f6fb5"),
    "recompute": ("#5bb5c9", "#6cc6d9"),
    "communication": ("#e0852b", "#f0994a"),
    "bubble": ("#e8bf3f", "#f0cd5e"),
    "slow": ("#c8443b", "#e0655c"),
    "data": ("#8a5cb8", "#a67fd0"),
    "update": ("#3f9a5f", "#58b678"),
    "pause": ("#9a7b5f", "#b3967b"),
    "other": ("#9aa3ad", "#7d8792"),
    "line": ("#23508f", "#8db8f5"),
    "second": ("#e0852b", "#f0994a"),
}
"""Light and dark color of each group of causes, and of lines."""
GROUPS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "forward": ("forward", ("forward",)),
    "backward": ("backward", ("backward",)),
    "recompute": ("recomputation", ("recompute",)),
    "update": ("optimizer", ("update",)),
    "communication": ("communication", ("replicate", "shard", "tensor", "batch_norm", "tables", "sync")),
    "bubble": ("pipeline, bubble included", ("pipeline", "bubble")),
    "slow": ("waiting for other ranks", ("slowest", "uneven", "interrupted")),
    "data": ("data", ("data", "copy")),
    "pause": ("evaluation, checkpoint, audit", ("evaluation", "checkpoint", "audit")),
    "other": ("other", ("other", "step", "workers", "host")),
}
"""Group → its name, and the causes in it."""


def group_of(cause: str) -> str:
    """The group of a cause."""
    return next((group for group, (_, causes) in GROUPS.items() if cause in causes), "other")


def _variables(index: int) -> str:
    return "".join(f"--{name}:{colors[index]};" for name, colors in COLORS.items())


_LIGHT = f"--back:#ffffff;--card:#f6f7f9;--text:#1c2530;--soft:#5b6673;--grid:#d9dee4;--good:#2f7d4c;{_variables(0)}"
_DARK = f"--back:#12171d;--card:#1b222a;--text:#e6ebf0;--soft:#9aa6b2;--grid:#323c47;--good:#6cc98f;{_variables(1)}"

_COLORED = "".join(
    f".c-{name}{{background:var(--{name});fill:var(--{name});stroke:none}}.s-{name}{{stroke:var(--{name})}}"
    for name in COLORS
)
STYLE = (
    f":root{{color-scheme:light dark;{_LIGHT}}}"
    f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}"
    f"@media print{{:root{{{_LIGHT}}}}}"
    f"{files(__package__).joinpath('page.css').read_text(encoding='utf-8')}{_COLORED}"
)
"""The style sheet: the colors of each mode, and page.css."""
