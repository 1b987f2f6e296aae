"""Where the rows of embedding tables on servers stand."""

from dataclasses import dataclass


@dataclass(frozen=True)
class StepVerdict:
    """What becomes of the gradients of a step. All ranks find the same."""

    factor: float = 1.0
    """Of all gradients, as for the parameters."""
    lr_factor: float = 1.0
    """The schedule's."""
    is_skipped: bool = False
    """True if the step changes nothing, because it was not finite."""
    is_load: bool = False
    """True if the step is not one of the training: its parts are rows with their states, read from a checkpoint."""
    updates: int = 0
    """If it is a load: the updates that the rows have had."""


@dataclass(frozen=True)
class RowPoint:
    """Where the rows stand, so that ranks can go back to it."""

    step: int
    """Row steps that are done: those of the training, and those in which a checkpoint was loaded."""
    verdicts: tuple[StepVerdict, ...]
    """On the latest of them, which the servers may not have been told; the last one is on `step`."""
    tables: tuple[str, ...] = ()
    """The tables that are on servers."""
    restarts: int = 0
    """How often the rows had begun anew: if they have since, the servers cannot go back."""
    since: int = 0
    """Rows that have changed in this row step or later are not in the checkpoint that has all rows."""
