"""The world of a process that torchrun, srun or mpirun has started as a rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onecurve.device.environment import LauncherTask, is_rank_of_torchrun
from onecurve.device.world import World
from onecurve.hosts.rank_meeting import rank_meeting
from onecurve.launch.rank_store import store_of


@contextmanager
def launched_world(folder: Path) -> Iterator[World | None]:
    """Yield the world, or None if this process is alone. `folder`: one that all ranks see."""
    task = LauncherTask.of_environment()
    if task is None or task.is_keeper or is_rank_of_torchrun():
        yield World.from_environment()
        return
    with rank_meeting(task, folder) as assignment, store_of(assignment) as store:
        yield World.of(assignment, store)
