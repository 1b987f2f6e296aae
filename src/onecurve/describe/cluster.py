"""The machines."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Cluster:
    """The hosts a job may use; so far one, described by its devices."""

    device: str
    """Kind of device, as torch names it: `cpu`, `cuda`, …"""
    devices: int
    """How many of them; on a CPU host its cores, since every rank takes a group of cores."""
    memory: int
    """Bytes of one accelerator, or of the whole CPU host, whose ranks share it."""
    cores: int

    def memory_per_rank(self, ranks: int) -> int:
        return self.memory // ranks if self.device == "cpu" else self.memory
