"""How long a collective takes: latency + volume, on a ring; and where an axis of the mesh lies in the machines.

Source: the ring algorithms in Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH" (2005, doi:10.1177/1094342005051521); an all-reduce is a reduce-scatter and an all-gather. Inside and between
hosts at once, as NCCL's rings go: the slower of the two sets the pace.
"""

from dataclasses import dataclass, replace

from onecurve.describe.arithmetic import ceil_log2
from onecurve.describe.cluster import HostGroup, Link
from onecurve.describe.mesh import AXES, Mesh
from onecurve.describe.profile import CollectiveKind

_PASSES: dict[CollectiveKind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often every byte goes round."""


DATA = "data"
"""Copies and shards together: all ranks that take samples of their own."""


@dataclass(frozen=True)
class AxisPlacement:
    """How the ranks of one axis lie in the hosts."""

    ranks: int
    ranks_per_host: int
    """Of them in one host."""
    intra_host: Link
    inter_host: Link

    @property
    def hosts(self) -> int:
        return -(-self.ranks // self.ranks_per_host)

    @property
    def overlap_penalty(self) -> float | None:
        return self.intra_host.overlap_penalty if self.ranks == self.ranks_per_host else self.inter_host.overlap_penalty

    def seconds(self, kind: CollectiveKind, size: float) -> float:
        """Of a tensor of so many bytes. Between hosts each of the neighbours has its part of the network; where all
        send to all, each has a tensor of its own to send through it."""
        if self.ranks == 1 or not size:
            return 0.0
        near = self._ring(size, self.ranks_per_host, self.intra_host.bandwidth)
        helpers = 1 if kind == "all_to_all" else self.ranks_per_host
        far = self._ring(size, self.hosts, self.inter_host.bandwidth * helpers)
        messages = self.ranks_per_host - 1, ceil_log2(self.hosts)
        latency = messages[0] * self.intra_host.latency + messages[1] * self.inter_host.latency
        link = self.intra_host if self.hosts == 1 else self.inter_host
        few, many = {"all_gather": link.all_gather_factors, "reduce_scatter": link.reduce_scatter_factors}.get(
            kind, (1.0, 1.0)
        )
        return _PASSES[kind] * (many * max(near, far) + few * latency)

    def _ring(self, size: float, members: int, bandwidth: float) -> float:
        return size * (members - 1) / members / bandwidth


def alone(ranks: int, link: Link) -> AxisPlacement:
    """A group of its own, in one host."""
    return AxisPlacement(ranks, ranks, link, link)


def place(mesh: Mesh, axis: str, hosts: HostGroup, inside: float = 1.0, network: float = 1.0) -> AxisPlacement:
    """Ranks are numbered with the last axis fastest, and hosts take them in that order. `inside`, `network`: what of
    the links' bandwidth is reached."""
    stride = 1
    for other in AXES[AXES.index("shard" if axis == DATA else axis) + 1 :]:
        stride *= getattr(mesh, other)
    ranks = mesh.data if axis == DATA else getattr(mesh, axis)
    return AxisPlacement(
        ranks,
        max(1, min(ranks, hosts.devices_per_host // stride)),
        replace(hosts.intra_host, bandwidth=hosts.intra_host.bandwidth * inside),
        replace(hosts.inter_host, bandwidth=hosts.inter_host.bandwidth * network),
    )
