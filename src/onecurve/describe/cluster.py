"""The machines: devices, the hosts they are in, the links between them."""

from dataclasses import dataclass, field, replace

from onecurve.describe.arithmetic import between
from onecurve.describe.constants import Constants
from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class Link:
    """Between neighbours."""

    latency: float = 5e-6
    """Seconds before the first byte arrives."""
    bandwidth: float = 100e9
    """Bytes per second, each way, per device."""
    felt: float | None = None
    """How much of what is sent beside computing is felt all the same, where that was measured."""
    gather: tuple[float, float] = (1.0, 1.0)
    """How many times as long as half an all-reduce an all-gather takes, of few bytes and of many,"""
    scatter: tuple[float, float] = (1.0, 1.0)
    """and a reduce-scatter: libraries are not equally good at all of them."""


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
    rates: dict[str, dict[str, float]] = field(default_factory=dict)
    """What square matrix products were measured to reach: precision → number of rows → FLOPs per second."""
    operation: float = 0.0
    """Seconds that the smallest operation takes, where the host computes itself."""

    def __post_init__(self) -> None:
        rates = [self.bandwidth, self.matrix, self.attention, *self.flops.values()]
        rates += [rate for known in self.rates.values() for rate in known.values()]
        if not all(0 < rate < float("inf") for rate in rates) or self.memory < 0 or self.operation < 0:
            raise OnecurveError(f"device {self.name}: rates are above 0, memory and times not below 0")
        if not all(size.isdigit() for known in self.rates.values() for size in known):
            raise OnecurveError(f"device {self.name}: its rates are by numbers of rows, such as 512")

    def peak(self, precision: str) -> float:
        found = self.flops.get(precision) or self.flops.get("fp32")
        if not found:
            raise OnecurveError(f"device {self.name}: no rate is known for {precision}; add it to the cluster file")
        return found

    def speed(self, precision: str, flops: float = 0.0) -> float:
        """What products reach: of so many FLOPs each, where that was measured, or large ones."""
        measured = self.rates.get(precision)
        if not measured:
            return self.peak(precision) * self.matrix
        sizes = sorted((float(size), rate) for size, rate in measured.items())
        if not flops:
            return sizes[-1][1]
        return between(sizes, (flops / 2) ** (1 / 3))


@dataclass(frozen=True)
class Split:
    """A CPU host's cores in groups of `threads`, each group a rank, all at work."""

    threads: int
    matrix: float
    """How many times as fast as one core alone a rank multiplies,"""
    memory: float
    """moves bytes,"""
    operation: float
    """and how many times as long its smallest operation takes."""


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
    """Of one device for an hour; of a CPU host, all of it."""
    splits: tuple[Split, ...] = ()
    """Of a CPU host, whose `device` is one core, alone."""
    overhead: float = 4e9
    """Bytes that a rank takes before it holds anything: the driver's context, buffers of collectives, what the
    allocator cannot use."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.devices < 1 or self.cores < 0:
            raise OnecurveError(
                f"cluster: {self.count} hosts × {self.devices} {self.device.name}; at least 1 is needed"
            )

    @property
    def total(self) -> int:
        return self.count * self.devices

    @property
    def kind(self) -> str:
        return self.device.kind

    def as_ranks(self, ranks: int) -> "Hosts":
        """With so many ranks on each: a CPU host's cores are dealt out to them."""
        if self.kind != "cpu":
            return self
        threads = max(1, self.cores // ranks)
        known = [each for each in self.splits if each.threads <= threads]
        split = max(known, key=lambda each: each.threads) if known else Split(threads, threads, threads, 1.0)
        device = replace(
            self.device,
            memory=self.device.memory // ranks,
            bandwidth=self.device.bandwidth * split.memory,
            flops={name: rate * split.matrix for name, rate in self.device.flops.items()},
            rates={
                name: {size: rate * split.matrix for size, rate in known.items()}
                for name, known in self.device.rates.items()
            },
            operation=self.device.operation * split.operation,
        )
        network = replace(self.network, bandwidth=self.network.bandwidth / ranks)  # was measured by one of them alone
        return replace(self, device=device, devices=ranks, cores=threads, network=network)


@dataclass(frozen=True)
class Cluster:
    """What a job may use."""

    groups: tuple[Hosts, ...]
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        if len({group.kind for group in self.groups}) != 1:
            raise OnecurveError("cluster: it needs hosts whose devices are of one kind, in [[groups]]")

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
    def neighbours(self) -> int:
        """Ranks that can be in one host, on any of them."""
        return min(group.cores if group.kind == "cpu" else group.devices for group in self.groups)

    @property
    def memory(self) -> int:
        """Bytes of the smallest accelerator, or of the whole CPU host, whose ranks share it."""
        return min(group.device.memory for group in self.groups)

    @property
    def cores(self) -> int:
        return self.groups[0].cores

    def as_ranks(self, ranks: int) -> tuple[Hosts, ...]:
        """The groups with so many ranks dealt out to them: a CPU host's cores are shared by as many ranks as it is
        given, the same on every host."""
        hosts = sum(group.count for group in self.groups)
        return tuple(group.as_ranks(max(1, -(-ranks // hosts))) for group in self.groups)

    def memory_per_rank(self, ranks: int) -> int:
        return self.memory // ranks if self.device == "cpu" else self.memory
