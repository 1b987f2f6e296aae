"""Which checkpoints are no longer needed. A pure function."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from onecurve.checkpoint.store import step_of


@dataclass(frozen=True)
class Retention:
    last: int = 2
    keep_every: int | None = None
    """Those of every so many steps are kept for good."""
    best: bool = True
    """Whether the one of the best evaluation is kept."""

    def unneeded(self, names: Sequence[str], newest: str, best_step: int, damaged: Collection[str] = ()) -> list[str]:
        """`names`: all that exist, oldest first. What lies at or past the newest is of a life that was given up."""
        given_up = [name for name in names if name != newest and step_of(name) >= step_of(newest)]
        sound = [name for name in names if name not in given_up and name not in damaged]
        kept = {newest, *sound[-self.last :]}
        kept |= {name for name in sound if self.keep_every and step_of(name) % self.keep_every == 0}
        if self.best:
            kept |= {name for name in sound if step_of(name) == best_step}
        return [name for name in names if name not in kept]
