"""How long a collective takes: latency + volume, on a ring; and where an axis of the mesh lies in the machines.

Source: the ring algorithms in Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in
MPICH" (2005, doi:10.1177/1094342005051521); an all-reduce is a reduce-scatter and an all-gather. Inside and between
hosts at once, as NCCL's rings go: the slower of the two sets the pace.
"""

from dataclasses import dataclass, replace

from onecurve.describe.cluster import Hosts, Link
from onecurve.describe.mesh import AXES, Mesh
from onecurve.describe.profile import CollectiveKind

_PASSES: dict[CollectiveKind, int] = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1, "all_to_all": 1}
"""How often every byte goes round."""


DATA = "data"
"""Copies and shards together: all ranks that take samples of their own."""


@dataclass(frozen=True)
class Place:
    """How the ranks of one axis lie in the hosts."""

    ranks: int
    neighbours: int
    """Of them in one host."""
    inside: Link
    network: Link

    @property
    def hosts(self) -> int:
        return -(-self.ranks // self.neighbours)

    @property
    def felt(self) -> float | None:
        return self.inside.felt if self.ranks == self.neighbours else self.network.felt

    def seconds(self, kind: CollectiveKind, size: float) -> float:
        """Of a tensor of so many bytes. Between hosts each of the neighbours has its part of the network; where all
        send to all, each has a tensor of its own to send through it."""
        if self.ranks == 1 or not size:
            return 0.0
        near = self._ring(size, self.neighbours, self.inside.bandwidth)
        helpers = 1 if kind == "all_to_all" else self.neighbours
        far = self._ring(size, self.hosts, self.network.bandwidth * helpers)
        messages = self.neighbours - 1, doublings(self.hosts)
        latency = messages[0] * self.inside.latency + messages[1] * self.network.latency
        link = self.inside if self.hosts == 1 else self.network
        few, many = {"all_gather": link.gather, "reduce_scatter": link.scatter}.get(kind, (1.0, 1.0))
        return _PASSES[kind] * (many * max(near, far) + few * latency)

    def _ring(self, size: float, members: int, bandwidth: float) -> float:
        return size * (members - 1) / members / bandwidth


def alone(ranks: int, link: Link) -> Place:
    """A group of its own, in one host."""
    return Place(ranks, ranks, link, link)


def doublings(members: int) -> int:
    """NCCL sends small messages between hosts along trees."""
    return (members - 1).bit_length()


def place(mesh: Mesh, axis: str, hosts: Hosts, inside: float = 1.0, network: float = 1.0) -> Place:
    """Ranks are numbered with the last axis fastest, and hosts take them in that order. `inside`, `network`: what of
    the links' bandwidth is reached."""
    stride = 1
    for other in AXES[AXES.index("shard" if axis == DATA else axis) + 1 :]:
        stride *= getattr(mesh, other)
    ranks = mesh.data if axis == DATA else getattr(mesh, axis)
    return Place(
        ranks,
        max(1, min(ranks, hosts.devices // stride)),
        replace(hosts.inside, bandwidth=hosts.inside.bandwidth * inside),
        replace(hosts.network, bandwidth=hosts.network.bandwidth * network),
    )
