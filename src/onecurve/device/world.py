"""The rank of this process: as its launcher assigned it, or from the environment variables that torchrun sets."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store, _abort_process_group, _world

from onecurve.describe.assignment import Assignment
from onecurve.describe.errors import OnecurveError
from onecurve.device.device import Device
from onecurve.device.environment import is_rank_of_torchrun
from onecurve.device.gloo import connect_neighbours, gloo_lazy_init

_TIMEOUT = timedelta(minutes=30)
"""Of a collective, for all backends. NCCL's own is 10 minutes, in which one rank may be busy with an evaluation."""


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
    store: Store | None = None
    """Where the ranks find each other; None: at the address that the environment names."""
    on_join: Callable[[], None] = lambda: None
    """Called before the process group is initialized. From then on the process may have threads."""

    @staticmethod
    def of(assignment: Assignment, store: Store | None, on_join: Callable[[], None] = lambda: None) -> "World":
        """The world of an assignment. `store`: where its ranks find each other; None if there is one rank.

        The environment gets the variables that torchrun would set, for the user's code, and the names of the network
        device, unless the user has set them.
        """
        os.environ |= {
            "RANK": str(assignment.rank),
            "WORLD_SIZE": str(assignment.generation.size),
            "LOCAL_RANK": str(assignment.local_rank),
            "LOCAL_WORLD_SIZE": str(assignment.local_size),
        }
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, assignment.interface)
        return World(
            rank=assignment.rank,
            size=assignment.generation.size,
            local_rank=assignment.local_rank,
            local_size=assignment.local_size,
            store=store,
            on_join=on_join,
        )

    @staticmethod
    def from_environment() -> "World | None":
        """Read RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE; return None if torchrun has not set them."""
        if not is_rank_of_torchrun():
            return None
        try:
            rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
            local_rank = int(os.environ.get("LOCAL_RANK", rank))
            local_size = int(os.environ.get("LOCAL_WORLD_SIZE", size))
            return World(rank=rank, size=size, local_rank=local_rank, local_size=local_size)
        except ValueError as error:
            raise OnecurveError(
                f"environment: RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE must be integers ({error})"
            ) from None

    def join(self, device: Device) -> None:
        """Initialize torch's process group; one rank alone needs none."""
        self.on_join()
        if self.size > 1 and not dist.is_initialized():
            # No device_id: with it NCCL splits later groups off this one, which needs a call of every rank, and groups
            # are made by their own ranks only. NCCL uses the current device, which is this rank's.
            with gloo_lazy_init(True):
                dist.init_process_group(
                    device.backend, store=self.store, rank=self.rank, world_size=self.size, timeout=_TIMEOUT
                )
            connect_neighbours()

    def leave(self) -> None:
        """Destroy the process group. NCCL waits for all ranks: after an error, call `abandon_process_groups`."""
        if dist.is_initialized():
            dist.destroy_process_group()
            _forget_meshes()


def abandon_process_groups() -> None:
    """Leave all process groups without waiting for their other ranks; they cannot be used any more."""
    if dist.is_initialized():
        if dist.get_backend() == "gloo":
            dist.destroy_process_group()
        else:
            _abort_process_group()
        _forget_meshes()
    # torch names groups by a number, under which the ranks look for each other. It begins again when a group is
    # destroyed, but not after one that has failed while it was made: a process that is new would use another name.
    _world.group_count = 0


def _forget_meshes() -> None:
    """Forget what DTensor has computed: the results hold process groups."""
    if "torch.distributed.tensor" in sys.modules:  # to import it takes a second
        from torch.distributed.tensor.debug import _clear_sharding_prop_cache

        _clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
