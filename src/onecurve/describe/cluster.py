"""The machines: devices, the hosts they are in, the links between them."""

from dataclasses import dataclass, field

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class Link:
    """Between neighbours."""

    latency: float = 5e-6
    """Seconds before the first byte arrives."""
    bandwidth: float = 100e9
    """Bytes per second, each way, per device."""


@dataclass(frozen=True)
class DeviceSpec:
    """What one device does: a GPU, or a CPU rank's cores."""

    name: str
    kind: str = "cpu"
    """As torch names it: `cpu`, `cuda`, …"""
    memory: int = 0
    bandwidth: float = 1.0
    """Bytes per second, of its memory."""
    flops: dict[str, float] = field(default_factory=dict)
    """Peak per second, by precision."""
    matrix: float = 0.8
    """The part of the peak that large matrix products reach."""
    attention: float = 0.5
    """The part of the peak that fused attention reaches."""

    def peak(self, precision: str) -> float:
        found = self.flops.get(precision) or self.flops.get("fp32")
        if not found:
            raise OnecurveError(f"device {self.name}: no rate is known for {precision}; add it to the cluster file")
        return found


@dataclass(frozen=True)
class Hosts:
    """Machines that are alike."""

    device: DeviceSpec
    count: int = 1
    devices: int = 1
    """In each."""
    cores: int = 1
    inside: Link = field(default_factory=Link)
    """Between the devices of one host."""
    network: Link = field(default_factory=Link)
    """Between hosts: each device's part of it."""
    price: float | None = None
    """Of one device for an hour."""

    @property
    def total(self) -> int:
        return self.count * self.devices


@dataclass(frozen=True)
class Cluster:
    """What a job may use."""

    groups: tuple[Hosts, ...]

    @staticmethod
    def of(kind: str, devices: int, memory: int, cores: int) -> "Cluster":
        """One host whose devices' rates are not known. `memory`: of one accelerator, or of the whole CPU host."""
        return Cluster((Hosts(DeviceSpec(kind, kind, memory), 1, devices, cores),))

    @property
    def device(self) -> str:
        """Kind of device, as torch names it: `cpu`, `cuda`, …"""
        return self.groups[0].device.kind

    @property
    def devices(self) -> int:
        """How many of them; on a CPU host its cores, since every rank takes a group of cores."""
        return sum(group.total for group in self.groups)

    @property
    def memory(self) -> int:
        """Bytes of the smallest accelerator, or of the whole CPU host, whose ranks share it."""
        return min(group.device.memory for group in self.groups)

    @property
    def cores(self) -> int:
        return self.groups[0].cores

    def memory_per_rank(self, ranks: int) -> int:
        return self.memory // ranks if self.device == "cpu" else self.memory
