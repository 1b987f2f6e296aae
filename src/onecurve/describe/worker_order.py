"""What a worker is started with."""

from dataclasses import dataclass

from onecurve.describe.row_servers import RowServerAddress


@dataclass(frozen=True)
class WorkerOrder:
    """A process that computes steps for a run."""

    script: str
    arguments: tuple[str, ...]
    tickets: str
    """`HOST:PORT` where the run hands out its steps."""
    rows: RowServerAddress
    number: int
    """Of this host's workers, from 0: of its accelerators, it uses the one with this number."""
    workers: int
    """So many share this host."""
    parent: int | None
    """The process with which it ends, which is the run; None if somebody else has started it."""

    @property
    def is_own(self) -> bool:
        """True if the run has started it."""
        return self.parent is not None
