"""What the runs of a job have in common, in every generation."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from onecurve.checkpoint.saver import SaveEvent
from onecurve.device.world import World
from onecurve.runtime.proof import Proof
from onecurve.runtime.row_tables import RowAccess


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What the runs of a job have in common, in every generation."""

    out: Path | None = None
    """The run's folder; the run continues from its newest checkpoint."""
    fresh: bool = False
    """Remove earlier checkpoints and start over, in the first generation."""
    change: Collection[str] = ()
    """Fields of the job that differ from the checkpoint's."""
    manual: bool = False
    """The user calls backward."""
    stop: Callable[[], bool] = lambda: False
    """Asked once per step."""
    regroup: Callable[[], bool] = lambda: False
    """Asked once per step: True if the run is to go on in another generation."""
    hand_over: Callable[[], None] = lambda: None
    """Called when all ranks have kept what the next generation continues from."""
    waited: Callable[[], float | None] = lambda: None
    """Asked once per step: the share of its time that this rank waits for others; None if that is not known."""
    on_straggler: Callable[[float, float], None] = lambda _, __: None
    """Told this rank's speed, where the others have 1, and for how long, if they wait for it most of the time."""
    on_load: Callable[[int, int], None] = lambda _, __: None
    """Told the bytes of a checkpoint that this rank has read, and those it reads in all."""
    on_event: Callable[[SaveEvent], None] = lambda _: None
    on_interruption: Callable[[], None] = lambda: None
    """Called at the end of a run that was stopped before its last step."""
    on_facts: Callable[[], None] = lambda: None
    """Called once this process knows the `JobFacts`."""
    rows: Callable[[World], RowAccess | None] = lambda _: None
    """How this process, as a rank of a world, reaches the row servers of the job; None if it does not."""
    proof: Proof | None = None
    """Proves the plan before anything is allocated; None trains without."""
