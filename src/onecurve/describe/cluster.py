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
    overlap_penalty: float | None = None
    """How much of what is sent beside computing is felt all the same, where that was measured."""
    all_gather_factors: tuple[float, float] = (1.0, 1.0)
    """How many times as long as half an all-reduce an all-gather takes, of few bytes and of many,"""
    reduce_scatter_factors: tuple[float, float] = (1.0, 1.0)
    """and a reduce-scatter: libraries are not equally good at all of them."""


@dataclass(frozen=True)
class DeviceSpec:
    """What one device does: a GPU, or a CPU rank's cores."""

    name: str
    kind: str = "cpu"
    """As torch names it: `cpu`, `cuda`, …"""
    memory: int = 0
    memory_bandwidth: float = 1.0
    """Bytes per second, of its memory."""
    flops: dict[str, float] = field(default_factory=dict)
    """Peak per second, by precision."""
    matmul_efficiency: float = 0.8
    """The part of the peak that large matrix products reach."""
    attention_efficiency: float = 0.5
    """The part of the peak that fused attention reaches."""
    matmul_rates: dict[str, dict[str, float]] = field(default_factory=dict)
    """What square matrix products were measured to reach: precision → number of rows → FLOPs per second."""
    op_seconds: float = 0.0
    """Seconds that the smallest operation takes, where the host computes itself."""

    def __post_init__(self) -> None:
        rates = [self.memory_bandwidth, self.matmul_efficiency, self.attention_efficiency, *self.flops.values()]
        rates += [rate for known in self.matmul_rates.values() for rate in known.values()]
        if not all(0 < rate < float("inf") for rate in rates) or self.memory < 0 or self.op_seconds < 0:
            raise OnecurveError(f"device {self.name}: rates are above 0, memory and times not below 0")
        if not all(size.isdigit() for known in self.matmul_rates.values() for size in known):
            raise OnecurveError(f"device {self.name}: its rates are by numbers of rows, such as 512")

    def peak(self, precision: str) -> float:
        found = self.flops.get(precision) or self.flops.get("fp32")
        if not found:
            raise OnecurveError(f"device {self.name}: no rate is known for {precision}; add it to the cluster file")
        return found

    def speed(self, precision: str, flops: float = 0.0) -> float:
        """What products reach: of so many FLOPs each, where that was measured, or large ones."""
        measured = self.matmul_rates.get(precision)
        if not measured:
            return self.peak(precision) * self.matmul_efficiency
        sizes = sorted((float(size), rate) for size, rate in measured.items())
        if not flops:
            return sizes[-1][1]
        return between(sizes, (flops / 2) ** (1 / 3))


@dataclass(frozen=True)
class CoreSplit:
    """A CPU host's cores in groups of `threads`, each group a rank, all at work."""

    threads: int
    matmul_speedup: float
    """How many times as fast as one core alone a rank multiplies,"""
    memory_speedup: float
    """moves bytes,"""
    op_slowdown: float
    """and how many times as long its smallest operation takes."""


@dataclass(frozen=True)
class HostGroup:
    """Machines that are alike."""

    device: DeviceSpec
    count: int = 1
    devices_per_host: int = 1
    """In each."""
    cores_per_host: int = 1
    intra_host: Link = field(default_factory=Link)
    """Between the devices of one host."""
    inter_host: Link = field(default_factory=Link)
    """Between hosts: each device's part of it."""
    price_per_hour: float | None = None
    """Of one device for an hour; of a CPU host, all of it."""
    core_splits: tuple[CoreSplit, ...] = ()
    """Of a CPU host, whose `device` is one core, alone."""
    rank_overhead_bytes: float = 4e9
    """Bytes that a rank takes before it holds anything: the driver's context, buffers of collectives, what the
    allocator cannot use."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.devices_per_host < 1 or self.cores_per_host < 0:
            raise OnecurveError(
                f"cluster: {self.count} hosts × {self.devices_per_host} {self.device.name}; at least 1 is needed"
            )

    @property
    def total(self) -> int:
        return self.count * self.devices_per_host

    @property
    def kind(self) -> str:
        return self.device.kind

    def as_ranks(self, ranks: int) -> "HostGroup":
        """With so many ranks on each: a CPU host's cores are dealt out to them."""
        if self.kind != "cpu":
            return self
        threads = max(1, self.cores_per_host // ranks)
        known = [each for each in self.core_splits if each.threads <= threads]
        split = max(known, key=lambda each: each.threads) if known else CoreSplit(threads, threads, threads, 1.0)
        device = replace(
            self.device,
            memory=self.device.memory // ranks,
            memory_bandwidth=self.device.memory_bandwidth * split.memory_speedup,
            flops={name: rate * split.matmul_speedup for name, rate in self.device.flops.items()},
            matmul_rates={
                name: {size: rate * split.matmul_speedup for size, rate in known.items()}
                for name, known in self.device.matmul_rates.items()
            },
            op_seconds=self.device.op_seconds * split.op_slowdown,
        )
        network = replace(
            self.inter_host, bandwidth=self.inter_host.bandwidth / ranks
        )  # was measured by one of them alone
        return replace(self, device=device, devices_per_host=ranks, cores_per_host=threads, inter_host=network)


@dataclass(frozen=True)
class Cluster:
    """What a job may use."""

    groups: tuple[HostGroup, ...]
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        if len({group.kind for group in self.groups}) != 1:
            raise OnecurveError("cluster: it needs hosts whose devices are of one kind, in [[groups]]")

    @staticmethod
    def of(kind: str, devices: int, memory: int, cores: int) -> "Cluster":
        """One host whose devices' rates are not known. `memory`: of one accelerator, or of the whole CPU host."""
        return Cluster((HostGroup(DeviceSpec(kind, kind, memory), 1, devices, cores),))

    @property
    def device_kind(self) -> str:
        """Kind of device, as torch names it: `cpu`, `cuda`, …"""
        return self.groups[0].device.kind

    @property
    def devices(self) -> int:
        """How many of them; on a CPU host its cores, since every rank takes a group of cores."""
        return sum(group.total for group in self.groups)

    @property
    def ranks_per_host(self) -> int:
        """Ranks that can be in one host, on any of them."""
        return min(group.cores_per_host if group.kind == "cpu" else group.devices_per_host for group in self.groups)

    @property
    def memory(self) -> int:
        """Bytes of the smallest accelerator, or of the whole CPU host, whose ranks share it."""
        return min(group.device.memory for group in self.groups)

    @property
    def cores(self) -> int:
        return self.groups[0].cores_per_host

    def as_ranks(self, ranks: int) -> tuple[HostGroup, ...]:
        """The groups with so many ranks dealt out to them: a CPU host's cores are shared by as many ranks as it is
        given, the same on every host."""
        hosts = sum(group.count for group in self.groups)
        return tuple(group.as_ranks(max(1, -(-ranks // hosts))) for group in self.groups)

    def memory_per_rank(self, ranks: int) -> int:
        return self.memory // ranks if self.device_kind == "cpu" else self.memory
