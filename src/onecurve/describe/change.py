"""Changes of a job between two parts of one run: which fields may change, and a record of each change."""

from collections.abc import Sequence
from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError

CHANGEABLE = ("lr", "schedule", "global_batch", "steps", "data")
"""Fields of a job that `--change` may name. `steps` stands for `epochs` too."""


@dataclass(frozen=True)
class JobChange:
    """A field of the job that was changed when a run was continued."""

    field: str
    old: str
    new: str
    step: int
    """Steps that were done with the old value."""

    def __str__(self) -> str:
        return f"{self.field} {self.old} → {self.new}"


def read_change(change: str | Sequence[str]) -> tuple[str, ...]:
    """Read `--change`: names of fields, as a list or as text with commas."""
    words = change.split(",") if isinstance(change, str) else change
    names = tuple(dict.fromkeys(word.strip() for word in words))
    for name in names:
        if name == "epochs":
            raise OnecurveError("--change epochs: steps stands for epochs too; use --change steps")
        if name not in CHANGEABLE:
            *first, last = CHANGEABLE
            raise OnecurveError(
                f"--change {name}: not a field that may change while a run continues; use {', '.join(first)} or {last}"
            )
    return names
