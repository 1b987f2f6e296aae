"""The devices of this host: accelerators through torch.accelerator, or the CPU.

It has run on CPU and on the simulated accelerator of the tests, not yet on a GPU.
"""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

import torch

from onecurve.describe.cluster import Cluster
from onecurve.device.rng import seed_all


@dataclass(frozen=True)
class Device:
    """The device of one rank."""

    torch_device: torch.device
    backend: str
    """Backend for torch.distributed, for example `gloo` or `cpu:gloo,cuda:nccl`."""
    asynchronous: bool
    """True if the device queues its work, so that reading a result makes the host wait."""

    @property
    def kind(self) -> str:
        """Device type as torch names it: `cpu`, `cuda`, ..."""
        return self.torch_device.type

    def seed(self, seed: int) -> None:
        """Seed the random generators of the host (Python's, NumPy's and torch's) and of the device."""
        seed_all(seed)
        if self.kind != "cpu":
            torch.get_device_module(self.torch_device).manual_seed(seed)

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Allocate a buffer of `nbytes` bytes on the host: pinned for accelerators, with all pages already mapped."""
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=self.kind != "cpu").fill_(0)

    def shared_memory(self, buffer: memoryview) -> torch.Tensor:
        """Return memory that another process sees too as a tensor of bytes: pinned for accelerators, all pages mapped.

        Pinning it has not run on a GPU.
        """
        if not len(buffer):
            return torch.empty(0, dtype=torch.uint8)
        memory = torch.frombuffer(buffer, dtype=torch.uint8).fill_(0)
        if self.kind == "cuda":
            runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
            torch.cuda.check_error(runtime.cudaHostRegister(memory.data_ptr(), memory.nbytes, 0))
        return memory

    def peak_memory(self) -> int:
        """The most bytes of the device that this process has used so far; on a CPU, of the host's memory."""
        if self.kind == "cpu":
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(torch.get_device_module(self.torch_device).max_memory_allocated(self.torch_device))

    def used_memory(self) -> int:
        """The bytes of the device that this process uses now; on a CPU, of the host's memory."""
        if self.kind == "cpu":
            return resident_bytes()
        return int(torch.get_device_module(self.torch_device).memory_allocated(self.torch_device))

    def wait(self) -> None:
        """Wait until the device has finished all queued work."""
        if self.asynchronous:
            torch.accelerator.synchronize()


def local_device(local_rank: int) -> Device:
    """Select the device of this host's rank `local_rank` as the current device and return it."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return local_cpu()
    # A job scheduler may show each process only the device that is its own.
    index = local_rank if torch.accelerator.device_count() > 1 else 0
    torch.accelerator.set_device_index(index)
    device = torch.device(accelerator.type, index)
    backend = torch.distributed.get_default_backend_for_device(accelerator.type)
    return Device(device, f"cpu:gloo,{accelerator.type}:{backend}", asynchronous=True)


def ranks_on_visible_devices(local_ranks: int) -> int:
    """Return how many of this host's ranks share the devices that this process sees: one, if a job scheduler shows each
    process its own device only."""
    is_restricted = any(name.endswith("VISIBLE_DEVICES") for name in os.environ)
    return 1 if is_restricted and torch.accelerator.device_count() == 1 else local_ranks


def numa_nodes_of_devices(devices: int) -> list[int]:
    """The NUMA node of each of this host's first accelerators; empty if that is not known.

    It has not run on a GPU.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or torch.accelerator.device_count() < devices:
        return []
    nodes = []
    for index in range(devices):
        properties = torch.get_device_module(accelerator.type).get_device_properties(index)
        try:
            address = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
            nodes.append(int(Path(f"/sys/bus/pci/devices/{address}/numa_node").read_text()))
        except (AttributeError, OSError, ValueError):
            return []
    return nodes if min(nodes, default=-1) >= 0 else []


def local_cpu() -> Device:
    """The CPU as a device; fake tensors use it too."""
    return Device(torch.device("cpu"), "gloo", asynchronous=False)


@dataclass(frozen=True)
class VisibleDevices:
    """What is known of this host's devices without using them."""

    device_kind: str
    """As torch names it: `cpu`, `cuda`, ..."""
    devices: int
    """Number of accelerators, or of CPU cores."""
    cores: int
    """Number of CPU cores that this process may use."""


def visible_devices() -> VisibleDevices:
    """Look for the devices of this host. This process can still be forked afterwards."""
    cores = len(os.sched_getaffinity(0))
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None:
        return VisibleDevices("cpu", cores, cores)
    return VisibleDevices(accelerator.type, torch.accelerator.device_count(), cores)


def local_cluster() -> Cluster:
    """Describe this host as a cluster of one host. To read the memory of an accelerator uses it, so that this process
    must not be forked afterwards."""
    seen = visible_devices()
    if seen.device_kind == "cpu":
        return Cluster.of("cpu", seen.devices, _host_memory(), seen.cores)
    memory = torch.get_device_module(seen.device_kind).get_device_properties(0).total_memory
    return Cluster.of(seen.device_kind, seen.devices, memory, seen.cores)


def accelerator_in_use() -> bool:
    """True if this process has initialized an accelerator; it must not be forked then."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        return False
    is_initialized = getattr(torch.get_device_module(accelerator.type), "is_initialized", lambda: False)
    return bool(is_initialized())


def loader_workers(host: VisibleDevices, ranks: int) -> tuple[int, int]:
    """Data-loading processes of a rank: those to begin with, and the most, which is its part of the cores, up to 8."""
    if host.device_kind == "cpu":
        return 1, min(8, max(2, host.cores // ranks))
    most = min(8, max(2, host.cores // ranks - 1))
    return 2, most


def resident_bytes() -> int:
    """Resident memory of this process, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _host_memory() -> int:
    """Memory of this host in bytes, or the container's limit if that is smaller."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for limit_file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            return min(physical, int(Path(limit_file).read_text()))
        except (OSError, ValueError):
            continue
    return physical
