"""The hardware: devices, the hosts that contain them, the links between them.

Fields are the keys of cluster.toml. On CPU hosts a device is one core until `as_ranks` divides the cores among ranks.
"""

from dataclasses import dataclass, field, replace
from typing import ClassVar

from onecurve.describe.arithmetic import interpolate
from onecurve.describe.constants import Constants
from onecurve.describe.errors import OnecurveError

_SAME_GROUP_RATIO = 1.4
"""Hosts whose matmul rates differ by less than this factor form one group."""


@dataclass(frozen=True)
class Link:
    """A connection between neighbouring devices or hosts."""

    latency: float = 5e-6
    """Seconds until the first byte arrives."""
    bandwidth: float = 100e9
    """Bytes per second in each direction, per device."""
    overlap_penalty: float | None = None
    """Fraction of overlapped communication time that still slows compute, or None if it was not measured."""
    all_gather_factors: tuple[float, float] = (1.0, 1.0)
    """Time of an all-gather relative to half an all-reduce of the same size: for small and for large messages."""
    reduce_scatter_factors: tuple[float, float] = (1.0, 1.0)
    """Time of a reduce-scatter relative to half an all-reduce of the same size: for small and for large messages."""


@dataclass(frozen=True)
class DeviceSpec:
    """The capabilities of one device: an accelerator, or the cores of one CPU rank."""

    name: str
    kind: str = "cpu"
    """Device type as torch names it: `cpu`, `cuda`, …"""
    memory: int = 0
    """Bytes of memory."""
    memory_bandwidth: float = 1.0
    """Bytes of memory traffic per second."""
    flops: dict[str, float] = field(default_factory=dict)
    """Peak FLOPs per second by precision."""
    matmul_efficiency: float = 0.8
    """Fraction of the peak that large matrix products reach."""
    attention_efficiency: float = 0.5
    """Fraction of the peak that fused attention reaches."""
    matmul_rates: dict[str, dict[str, float]] = field(default_factory=dict)
    """Measured speed of square matrix products: precision → number of rows → FLOPs per second."""
    op_seconds: float = 0.0
    """Seconds of the smallest operation on a CPU; 0 for accelerators, whose operations the host launches in advance."""

    def __post_init__(self) -> None:
        rates = [self.memory_bandwidth, self.matmul_efficiency, self.attention_efficiency, *self.flops.values()]
        rates += [rate for by_rows in self.matmul_rates.values() for rate in by_rows.values()]
        if not all(0 < rate < float("inf") for rate in rates) or self.memory < 0 or self.op_seconds < 0:
            raise OnecurveError(
                f"device {self.name}: rates and efficiencies must be finite and above 0; memory and op_seconds must be "
                "at least 0"
            )
        if not all(rows.isdigit() for by_rows in self.matmul_rates.values() for rows in by_rows):
            raise OnecurveError(f"device {self.name}: the keys of matmul_rates must be numbers of rows, such as 512")

    def peak(self, precision: str) -> float:
        """Return the peak FLOPs per second in a precision; without an entry for it, the peak in fp32."""
        peak = self.flops.get(precision) or self.flops.get("fp32")
        if not peak:
            raise OnecurveError(
                f"device {self.name}: no FLOPs per second for {precision}; add them to the cluster file"
            )
        return peak

    def speed(self, precision: str, flops: float = 0.0) -> float:
        """Return the FLOPs per second that matrix products of `flops` FLOPs each reach.

        With `flops` = 0, or if no speeds were measured, return the speed of large products.
        """
        measured = self.matmul_rates.get(precision)
        if not measured:
            return self.peak(precision) * self.matmul_efficiency
        points = sorted((float(rows), rate) for rows, rate in measured.items())
        if not flops:
            return points[-1][1]
        return interpolate(points, (flops / 2) ** (1 / 3))


@dataclass(frozen=True)
class CoreSplit:
    """Measured speed of one rank when a CPU host's cores are split into ranks of `threads` cores, all busy."""

    threads: int
    matmul_speedup: float
    """Speed of matrix products, as a multiple of one core's on an idle host."""
    memory_speedup: float
    """Memory bandwidth, as a multiple of one core's on an idle host."""
    op_slowdown: float
    """Time of the smallest operation, as a multiple of one core's on an idle host."""


@dataclass(frozen=True)
class HostGroup:
    """A number of identical hosts."""

    device: DeviceSpec
    count: int = 1
    """Number of hosts."""
    devices_per_host: int = 1
    cores_per_host: int = 1
    intra_host: Link = field(default_factory=Link)
    """Link between the devices of one host."""
    inter_host: Link = field(default_factory=Link)
    """Link between hosts, per device."""
    price_per_hour: float | None = None
    """Price per device-hour (per host-hour on CPU), or None if unknown."""
    core_splits: tuple[CoreSplit, ...] = ()
    """Measured splits of a CPU host's cores; `device` then describes one core of an idle host."""
    rank_overhead_bytes: float = 4e9
    """Bytes that a rank uses besides its tensors: driver context, communication buffers, allocator fragmentation."""

    def __post_init__(self) -> None:
        if self.count < 1 or self.devices_per_host < 1 or self.cores_per_host < 0:
            raise OnecurveError(
                f"cluster: count = {self.count}, devices_per_host = {self.devices_per_host} and cores_per_host = "
                f"{self.cores_per_host} for {self.device.name}; the first two must be at least 1, the last at least 0"
            )

    @property
    def total(self) -> int:
        """Number of devices in all hosts."""
        return self.count * self.devices_per_host

    @property
    def kind(self) -> str:
        return self.device.kind

    def is_similar(self, other: "HostGroup") -> bool:
        """True if the hosts of both have the same number of cores and devices, and about the same speed."""
        ratio = self.device.speed("fp32") / other.device.speed("fp32")
        return (
            1 / _SAME_GROUP_RATIO < ratio < _SAME_GROUP_RATIO
            and self.cores_per_host == other.cores_per_host
            and self.devices_per_host == other.devices_per_host
            and self.kind == other.kind
        )

    def as_ranks(self, ranks: int) -> "HostGroup":
        """Return the group with `ranks` ranks per CPU host, which share its cores; accelerators are unchanged."""
        if self.kind != "cpu":
            return self
        threads = max(1, self.cores_per_host // ranks)
        splits = [split for split in self.core_splits if split.threads <= threads]
        split = max(splits, key=lambda split: split.threads) if splits else CoreSplit(threads, threads, threads, 1.0)
        device = replace(
            self.device,
            memory=self.device.memory // ranks,
            memory_bandwidth=self.device.memory_bandwidth * split.memory_speedup,
            flops={name: rate * split.matmul_speedup for name, rate in self.device.flops.items()},
            matmul_rates={
                name: {rows: rate * split.matmul_speedup for rows, rate in by_rows.items()}
                for name, by_rows in self.device.matmul_rates.items()
            },
            op_seconds=self.device.op_seconds * split.op_slowdown,
        )
        # The bandwidth was measured with one rank per host; now all ranks of the host share it.
        network = replace(self.inter_host, bandwidth=self.inter_host.bandwidth / ranks)
        return replace(self, device=device, devices_per_host=ranks, cores_per_host=threads, inter_host=network)


@dataclass(frozen=True)
class Cluster:
    """The hardware that a job may use. It is the content of a cluster.toml.

    `onecurve.probe` measures one, and `onecurve.plan` also reads a shorthand such as `"2x8xH100"`.

    Args:
        groups: Groups of identical hosts, as `HostGroup`: their devices (memory in bytes, FLOPs per second), the links
            between them (latency in seconds, bandwidth in bytes per second) and the price per hour.
        constants: Efficiencies and overheads of the performance model, as `Constants`. Default: fitted to published
            measurements.

    Example::

        cluster = oc.probe("cluster.toml")
        print(cluster.devices, cluster.device_kind, "devices,", cluster.memory / 2**30, "GiB")
    """

    file_version: ClassVar[int] = 1

    groups: tuple[HostGroup, ...]
    constants: Constants = field(default_factory=Constants)

    def __post_init__(self) -> None:
        if len({group.kind for group in self.groups}) != 1:
            raise OnecurveError(
                "cluster: needs at least one entry in [[groups]], with devices of one kind in all of them"
            )

    @staticmethod
    def of(kind: str, devices: int, memory: int, cores: int) -> "Cluster":
        """Return a cluster of one host with unknown speeds. `memory` is per accelerator, or of the entire CPU host."""
        device = DeviceSpec(name=kind, kind=kind, memory=memory)
        return Cluster((HostGroup(device=device, count=1, devices_per_host=devices, cores_per_host=cores),))

    @property
    def device_kind(self) -> str:
        """Device type as torch names it: `cpu`, `cuda`, …"""
        return self.groups[0].device.kind

    @property
    def devices(self) -> int:
        """Number of devices; on CPU hosts the number of cores, since a rank uses one or more cores."""
        return sum(group.total for group in self.groups)

    @property
    def ranks_per_host(self) -> int:
        """Largest number of ranks that fits on every host."""
        return min(group.cores_per_host if group.kind == "cpu" else group.devices_per_host for group in self.groups)

    @property
    def memory(self) -> int:
        """Bytes of the smallest accelerator, or of the smallest CPU host, whose ranks share its memory."""
        return min(group.device.memory for group in self.groups)

    @property
    def cores(self) -> int:
        """CPU cores per host of the first group."""
        return self.groups[0].cores_per_host

    def as_ranks(self, ranks: int) -> tuple[HostGroup, ...]:
        """Return the groups with `ranks` ranks distributed over all hosts, the same number on every CPU host."""
        hosts = sum(group.count for group in self.groups)
        return tuple(group.as_ranks(max(1, -(-ranks // hosts))) for group in self.groups)

    def placement(self, ranks: int) -> tuple[tuple[int, int], ...]:
        """Return where `ranks` ranks run, as pairs of a number of hosts and the ranks on each of them."""
        placed = []
        for group in self.as_ranks(ranks):
            full_hosts, rest = divmod(min(ranks, group.total), group.devices_per_host)
            placed += [(full_hosts, group.devices_per_host), (1 if rest else 0, rest)]
            ranks -= min(ranks, group.total)
        return tuple((hosts, ranks_per_host) for hosts, ranks_per_host in placed if hosts)

    def memory_per_rank(self, ranks: int) -> int:
        """Return the bytes available to each of `ranks` ranks; on CPU they share the memory of one host."""
        return self.memory // ranks if self.device_kind == "cpu" else self.memory
