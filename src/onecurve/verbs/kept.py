"""What a rank has whose launcher leads it through generations."""

from dataclasses import dataclass

from onecurve.describe.generation import Generation
from onecurve.launch.launcher import Launcher
from onecurve.runtime.checkpoints import KeptMemory

LOCK_SECONDS = 5.0
"""Loader processes of a rank that was killed may hold the lock of the run's folder for a moment."""


@dataclass(frozen=True)
class Kept:
    """What a rank has whose launcher leads it through generations."""

    launcher: Launcher
    generation: Generation

    @property
    def memory(self) -> KeptMemory:
        """The memory that the launcher keeps."""
        interruption = self.generation.interruption
        if interruption is None:
            return KeptMemory(keeper=self.launcher)
        return KeptMemory(
            keeper=self.launcher,
            snapshot_of=self.launcher.snapshots if interruption.snapshot is not None else None,
            failures=interruption.failures,
            run_seconds=interruption.run_seconds,
        )
