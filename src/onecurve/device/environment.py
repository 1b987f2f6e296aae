"""What the environment says about this process. This module does not import torch."""

import os
import re
import sys
from dataclasses import dataclass

HASH_SEED = "PYTHONHASHSEED"
"""The variable that decides how Python hashes texts, and so in which order it iterates over a set of them."""
_FIXED = "0"


def fix_hash_seed() -> None:
    """Start this program again with a fixed hash seed, unless the user has set one: sets of texts then have the same
    order at every start and on every host. Call it before anything is imported that takes time."""
    if not os.environ.get(HASH_SEED):
        os.environ[HASH_SEED] = _FIXED
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def python_environment() -> dict[str, str]:
    """The environment for a Python process that runs the user's code: the hash seed is fixed unless the user has set
    one."""
    return {**os.environ, HASH_SEED: os.environ.get(HASH_SEED) or _FIXED}


def is_rank_of_torchrun() -> bool:
    """True if torchrun, or a launcher that sets the same variables, started this process as a rank."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_rank_of_launcher() -> bool:
    """True if torchrun, srun or mpirun started this process as a rank."""
    task = LauncherTask.of_environment()
    return is_rank_of_torchrun() or (task is not None and not task.is_keeper)


@dataclass(frozen=True, kw_only=True)
class LauncherTask:
    """This process, among those that srun or mpirun started together."""

    rank: int
    size: int
    local_rank: int
    """Rank among the processes of this host."""
    local_size: int
    hosts: int
    name: str
    """Of the start, the same in all its processes; no other start has it."""

    @property
    def is_keeper(self) -> bool:
        """True if there is one process on each of several hosts; otherwise several processes are ranks."""
        return self.local_size == 1 and self.hosts == self.size

    @staticmethod
    def of_environment() -> "LauncherTask | None":
        """Return None if neither srun nor mpirun started this process, or only this one."""
        task = _slurm_task() or _mpirun_task()
        return task if task is not None and task.size > 1 else None


def _slurm_task() -> LauncherTask | None:
    # A batch script has SLURM_PROCID too, but only srun sets SLURM_STEP_NUM_TASKS.
    if "SLURM_STEP_NUM_TASKS" not in os.environ or "SLURM_PROCID" not in os.environ:
        return None
    per_node = _tasks_per_node(os.environ["SLURM_STEP_TASKS_PER_NODE"])
    restart = os.environ.get("SLURM_RESTART_COUNT", "0")
    return LauncherTask(
        rank=int(os.environ["SLURM_PROCID"]),
        size=int(os.environ["SLURM_STEP_NUM_TASKS"]),
        local_rank=int(os.environ["SLURM_LOCALID"]),
        local_size=per_node[int(os.environ["SLURM_NODEID"])],
        hosts=len(per_node),
        name=f"slurm-{os.environ['SLURM_JOB_ID']}-{os.environ['SLURM_STEP_ID']}-{restart}",
    )


def _tasks_per_node(text: str) -> list[int]:
    """Slurm's `2(x3),1` as [2, 2, 2, 1]."""
    counts: list[int] = []
    for count, repeats in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(repeats or 1)
    return counts


def _mpirun_task() -> LauncherTask | None:
    if "OMPI_COMM_WORLD_RANK" not in os.environ:
        return None
    size, local_size = int(os.environ["OMPI_COMM_WORLD_SIZE"]), int(os.environ["OMPI_COMM_WORLD_LOCAL_SIZE"])
    return LauncherTask(
        rank=int(os.environ["OMPI_COMM_WORLD_RANK"]),
        size=size,
        local_rank=int(os.environ["OMPI_COMM_WORLD_LOCAL_RANK"]),
        local_size=local_size,
        hosts=int(os.environ.get("OMPI_MCA_orte_num_nodes", 0)) or (size if local_size == 1 else 1),  # noqa: SIM112
        name=f"mpirun-{re.sub('[^0-9A-Za-z]', '-', os.environ['PMIX_NAMESPACE'])}",
    )
