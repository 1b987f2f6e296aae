"""When checkpoints are saved, where they are stored, and which of them are kept."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from onecurve.describe.errors import OnecurveError
from onecurve.job.cadence import Every, check_every


@dataclass(frozen=True)
class Save:
    """When to save checkpoints, where, and how many to keep.

    By default a checkpoint is saved every ten minutes, after the best evaluation so far, and at the end of training;
    the two newest and the best one are kept.

    Args:
        every: Number of steps between checkpoints, or `"epoch"`. Default: None, save by time (`minutes`).
        minutes: Minutes between checkpoints; not used if `every` is set. Default: 10.
        last: Number of newest checkpoints to keep. Default: 2.
        keep_every: Also save, and never delete, the checkpoints at multiples of this many steps. If `every` is set,
            this must be a multiple of it. Default: None.
        best: Save after an evaluation that is the best so far, and keep that checkpoint. Default: True.
        to: Folder or fsspec URL for the checkpoints, for example `"s3://bucket/run"`. Default: None, the run's folder.
        memory: Number of steps between snapshots in host memory, from which a run that `onecurve run` has started
            continues when a rank or a host fails; they take twice the memory of a checkpoint on one host, and up
            to five times on several. Default: `"auto"`, as often as possible at a cost of at most 1 % of the time. With
            None, runs continue from checkpoints only.

    Example::

        oc.Save(every=500, last=3, keep_every=10_000)
    """

    every: Every | None = None
    minutes: float = 10.0
    last: int = 2
    keep_every: int | None = None
    best: bool = True
    to: str | None = None
    memory: int | Literal["auto"] | None = "auto"

    def __post_init__(self) -> None:
        if self.every is not None:
            check_every("Save", "every", self.every)
        steps = {"last": self.last, "keep_every": self.keep_every}
        if isinstance(self.memory, str):
            if self.memory != "auto":
                raise OnecurveError(f"Save: memory must be a number of steps, 'auto' or None, got {self.memory!r}")
        else:
            steps["memory"] = self.memory
        for name, value in steps.items():
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OnecurveError(f"Save: {name} must be an integer of at least 1, got {value!r}")
        if not (isinstance(self.minutes, int | float) and self.minutes > 0):
            raise OnecurveError(f"Save: minutes must be a number above 0, got {self.minutes!r}")
        if self.keep_every and isinstance(self.every, int) and self.keep_every % self.every:
            raise OnecurveError(
                f"Save: keep_every must be a multiple of every, got keep_every = {self.keep_every} and "
                f"every = {self.every}"
            )
        if isinstance(self.to, Path):
            object.__setattr__(self, "to", str(self.to))
        if self.to is not None and not isinstance(self.to, str):
            raise OnecurveError(f"Save: to must be a folder or URL as text, got {type(self.to).__name__}")
