"""Which rank this process is, as the launcher's environment says (torchrun's names, which others set too)."""

import os
from dataclasses import dataclass

import torch.distributed as dist

from onecurve.describe.errors import OnecurveError
from onecurve.device.device import Device


@dataclass(frozen=True)
class World:
    """The processes of one generation."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    @staticmethod
    def from_environment() -> "World | None":
        """None where no launcher has set a rank."""
        if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
            return None
        try:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            local_rank = int(os.environ.get("LOCAL_RANK", rank))
            return World(rank, size, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", size)))
        except ValueError as error:
            raise OnecurveError(f"environment: RANK, WORLD_SIZE, LOCAL_RANK must be whole numbers ({error})") from None

    def join(self, device: Device) -> None:
        """Meet the other ranks. A world of one needs no process group."""
        if self.size > 1 and not dist.is_initialized():
            dist.init_process_group(device.backend, rank=self.rank, world_size=self.size)

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
