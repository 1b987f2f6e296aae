"""The devices of this host. CPU is one of them.

Accelerators go through torch.accelerator; nothing here has run on a GPU yet, only on CPU.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from onecurve.describe.cluster import Cluster


@dataclass(frozen=True)
class Device:
    """The device of one rank."""

    torch_device: torch.device
    backend: str
    """What torch.distributed is to use."""
    asynchronous: bool
    """Work is queued: the host should not ask for a result before it must."""

    @property
    def kind(self) -> str:
        return self.torch_device.type

    def seed(self, seed: int) -> None:
        """Seed what the model draws from, host and device."""
        torch.default_generator.manual_seed(seed)
        if self.kind != "cpu":
            torch.get_device_module(self.torch_device).manual_seed(seed)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Bytes on the host that the device can copy into by itself; their pages are there already."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.kind != "cpu").fill_(0)

    def wait(self) -> None:
        """Until all queued work is done."""
        if self.asynchronous:
            torch.accelerator.synchronize()


def local_device(local_rank: int) -> Device:
    """The device of this host's rank `local_rank`, made current."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return local_cpu()
    torch.accelerator.set_device_index(local_rank)
    device = torch.device(accelerator.type, local_rank)
    backend = torch.distributed.get_default_backend_for_device(accelerator.type)
    return Device(device, f"cpu:gloo,{accelerator.type}:{backend}", asynchronous=True)


def local_cpu() -> Device:
    """Also what fake tensors pretend to be on."""
    return Device(torch.device("cpu"), "gloo", asynchronous=False)


def local_cluster() -> Cluster:
    """What this host has."""
    cores = len(os.sched_getaffinity(0))
    if torch.accelerator.is_available():
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        total = torch.get_device_module(accelerator.type).get_device_properties(0).total_memory
        return Cluster.of(accelerator.type, torch.accelerator.device_count(), total, cores)
    return Cluster.of("cpu", cores, _host_memory(), cores)


def loader_workers(cluster: Cluster, ranks: int) -> int:
    """Processes that load data for each rank: one where cores do the computing, more where they would idle."""
    return 1 if cluster.device_kind == "cpu" else min(8, max(1, cluster.cores // ranks - 1))


def resident_bytes() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _host_memory() -> int:
    """Physical memory, or what the container may use of it."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(physical, int(Path(limit).read_text()))
        except (OSError, ValueError):
            continue
    return physical
