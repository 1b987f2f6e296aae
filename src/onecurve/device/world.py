"""The rank of this process, from the environment variables that torchrun and other launchers set."""

import os
from dataclasses import dataclass

import torch.distributed as dist

from onecurve.describe.errors import OnecurveError
from onecurve.device.device import Device
from onecurve.device.gloo import connect_neighbours, gloo_lazy_init


@dataclass(frozen=True)
class World:
    """The rank of this process, and the number of processes of the run."""

    rank: int = 0
    size: int = 1
    """Number of ranks."""
    local_rank: int = 0
    """Rank among the processes of this host."""
    local_size: int = 1
    """Number of ranks on this host."""

    @staticmethod
    def from_environment() -> "World | None":
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; return None if no launcher has set them."""
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return None
        try:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            local_rank = int(os.environ.get("LOCAL_RANK", rank))
            return World(rank, size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", size)))
        except ValueError as error:
            raise OnecurveError(
                f"environment: RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be integers ({error})"
            ) from None

    def join(self, device: Device) -> None:
        """Initialize torch's process group; one rank alone needs none."""
        if self.size > 1 and not dist.is_initialized():
            with gloo_lazy_init(True):
                dist.init_process_group(device.backend, rank=self.rank, world_size=self.size)
            connect_neighbours()

    def leave(self) -> None:
        """Destroy the process group."""
        if dist.is_initialized():
            dist.destroy_process_group()
