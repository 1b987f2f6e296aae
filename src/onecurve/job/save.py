"""When a training is saved, where, and how long that is kept."""

from dataclasses import dataclass

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class Save:
    """By default every ten minutes and at the end; the last two are kept, and that of the best evaluation."""

    every: int | None = None
    """Steps between saves, instead of minutes."""
    minutes: float = 10.0
    last: int = 2
    """How many of the newest are kept."""
    keep_every: int | None = None
    """Those of every so many steps are kept for good."""
    best: bool = True
    """Whether to save after an evaluation that is the best so far, and to keep that."""
    to: str | None = None
    """Another place than the run's folder: anything fsspec knows, `s3://bucket/run`."""

    def __post_init__(self) -> None:
        for name, value in (("every", self.every), ("last", self.last), ("keep_every", self.keep_every)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
                raise OnecurveError(f"Save: {name} = {value!r}; a whole number of at least 1 is needed")
        if not (isinstance(self.minutes, int | float) and self.minutes > 0):
            raise OnecurveError(f"Save: minutes = {self.minutes!r}; a number above 0 is needed")
        if self.keep_every and self.every and self.keep_every % self.every:
            raise OnecurveError(
                f"Save: keep_every = {self.keep_every} is not a multiple of every = {self.every}, so few of those "
                "steps are saved; make it one"
            )
        if self.to is not None and not isinstance(self.to, str):
            raise OnecurveError(f"Save: to is a {type(self.to).__name__}; a folder or a URL is needed, as text")
