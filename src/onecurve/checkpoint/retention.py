"""Decides which checkpoints are no longer needed, as a pure function of their names."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from onecurve.checkpoint.store import step_of


@dataclass(frozen=True)
class Retention:
    """Which checkpoints to keep besides the newest."""

    last: int = 2
    """Number of the most recent checkpoints to keep."""
    keep_every: int | None = None
    """Checkpoints whose step is a multiple of this number are never removed."""
    best: bool = True
    """True to keep the checkpoint of the best evaluation."""

    def unneeded(
        self,
        names: Sequence[str],
        newest: str,
        best_step: int | None,
        damaged: Collection[str] = (),
        base_of: Callable[[str], str] = lambda _: "",
    ) -> list[str]:
        """Return the names of the checkpoints to remove.

        `names` are all existing checkpoints, oldest first. One at or after the step of `newest` was left by an earlier
        attempt that was resumed from a step before it; such checkpoints and `damaged` ones are removed and do not count
        as recent. `base_of`: name of the checkpoint without which one cannot be loaded, or "".
        """
        superseded = [name for name in names if name != newest and step_of(name) >= step_of(newest)]
        sound = [name for name in names if name not in superseded and name not in damaged]
        keep = {newest, *sound[-self.last :]}
        keep |= {name for name in sound if self.keep_every and step_of(name) % self.keep_every == 0}
        if self.best:
            keep |= {name for name in sound if step_of(name) == best_step}
        keep |= {base_of(name) for name in keep}
        return [name for name in names if name not in keep]
