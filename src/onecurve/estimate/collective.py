"""Time of collectives (latency plus volume on a ring), and the placement of mesh axes on hosts.

Source: the ring algorithms in Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH" (2005, doi:10.1177/1094342005051521); an all-reduce is a reduce-scatter followed by an all-gather. Intra-host and
inter-host transfers run at the same time, as in NCCL's rings, so the slower of the two determines the time.
"""

from dataclasses import dataclass, replace

from onecurve.describe.arithmetic import ceil_log2
from onecurve.describe.cluster import HostGroup, Link
from onecurve.describe.mesh import AXES, Mesh
from onecurve.describe.profile import CollectiveKind

_PASSES: dict[CollectiveKind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""Number of times that every byte travels around the ring."""

DATA = "data"
"""Name of the combined axis of all data-parallel ranks (`replicate` and `shard`)."""


@dataclass(frozen=True)
class AxisPlacement:
    """How the ranks of one axis are distributed over hosts, and the links between them."""

    ranks: int
    ranks_per_host: int
    intra_host: Link
    inter_host: Link

    @property
    def hosts(self) -> int:
        return -(-self.ranks // self.ranks_per_host)

    @property
    def overlap_penalty(self) -> float | None:
        """The overlap penalty of the slowest link in use, or None if it was not measured."""
        return self.intra_host.overlap_penalty if self.ranks == self.ranks_per_host else self.inter_host.overlap_penalty

    def seconds(self, kind: CollectiveKind, size: float) -> float:
        """Return the seconds of a collective on a tensor of `size` bytes.

        Between hosts, the ranks of a host share the tensor and use their network links in parallel. In an all-to-all
        each of them has a tensor of its own to send.
        """
        if self.ranks == 1 or not size:
            return 0.0
        intra_host = self._ring(size, self.ranks_per_host, self.intra_host.bandwidth)
        parallel_links = 1 if kind == "all_to_all" else self.ranks_per_host
        inter_host = self._ring(size, self.hosts, self.inter_host.bandwidth * parallel_links)
        messages = self.ranks_per_host - 1, ceil_log2(self.hosts)
        latency = messages[0] * self.intra_host.latency + messages[1] * self.inter_host.latency
        link = self.intra_host if self.hosts == 1 else self.inter_host
        latency_factor, volume_factor = {
            "all_gather": link.all_gather_factors,
            "reduce_scatter": link.reduce_scatter_factors,
        }.get(kind, (1.0, 1.0))
        return _PASSES[kind] * (volume_factor * max(intra_host, inter_host) + latency_factor * latency)

    def _ring(self, size: float, members: int, bandwidth: float) -> float:
        return size * (members - 1) / members / bandwidth


def single_host_placement(ranks: int, link: Link) -> AxisPlacement:
    """Return the placement of a group of ranks on one host."""
    return AxisPlacement(ranks, ranks, link, link)


def place_axis(
    mesh: Mesh,
    axis: str,
    hosts: HostGroup,
    intra_host_efficiency: float = 1.0,
    inter_host_efficiency: float = 1.0,
) -> AxisPlacement:
    """Return the placement of one mesh axis. Hosts are filled in rank order, in which the last axis varies fastest.

    The efficiencies are the fractions of the links' bandwidth that collectives reach.
    """
    stride = 1
    for inner_axis in AXES[AXES.index("shard" if axis == DATA else axis) + 1 :]:
        stride *= getattr(mesh, inner_axis)
    ranks = mesh.data if axis == DATA else getattr(mesh, axis)
    return AxisPlacement(
        ranks,
        max(1, min(ranks, hosts.devices_per_host // stride)),
        replace(hosts.intra_host, bandwidth=hosts.intra_host.bandwidth * intra_host_efficiency),
        replace(hosts.inter_host, bandwidth=hosts.inter_host.bandwidth * inter_host_efficiency),
    )
