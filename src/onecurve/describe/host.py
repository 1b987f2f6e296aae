"""What the hosts of a run tell each other."""

from dataclasses import dataclass, field

from onecurve.describe.assignment import Assignment, RankFailure
from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import OnecurveError, SignalName
from onecurve.describe.generation import Generation, StoreAddress


@dataclass(frozen=True, kw_only=True)
class HostRegistration:
    """What a host says about itself when it joins a run."""

    name: str
    address: str
    """Address at which the other hosts reach it."""
    cluster: Cluster | None = None
    """Its devices, as a cluster of one host; None if it is alone, and nobody asks."""
    versions: dict[str, str] = field(default_factory=dict)
    """Versions of onecurve, torch and Python, and the hash seed of its ranks."""
    job: dict[str, str] = field(default_factory=dict)
    """The fingerprint of its job, field by field."""
    snapshot_port: int = 0
    """Where it serves snapshots to the other hosts; 0 if there are none."""

    @property
    def devices(self) -> Cluster:
        """The cluster of this host."""
        assert self.cluster is not None
        return self.cluster


@dataclass(frozen=True)
class HostRange:
    """How many hosts a run may have: `4`, or `2:4` for at least 2 and at most 4."""

    least: int
    most: int

    @staticmethod
    def parse(text: str | int) -> "HostRange":
        least, colon, most = str(text).partition(":")
        if not least.isdecimal() or not (most if colon else least).isdecimal():
            raise OnecurveError(f"hosts = {text!r}: give a number, or MIN:MAX")
        hosts = HostRange(int(least), int(most if colon else least))
        if not 1 <= hosts.least <= hosts.most:
            raise OnecurveError(f"hosts = {text!r}: there must be at least 1, and MAX must not be less than MIN")
        return hosts

    def __str__(self) -> str:
        return str(self.least) if self.least == self.most else f"{self.least} to {self.most}"


@dataclass(frozen=True, kw_only=True)
class HostAssignment:
    """A host's place in one generation."""

    refusal: str = ""
    """Why the run does not need this host; empty if it does."""
    generation: Generation | None = None
    """None if the host is refused."""
    work: str = ""
    """What the ranks do: a verb of their program."""
    renews: bool = False
    """True if no process takes part in two generations."""
    first_rank: int = 0
    """Rank of the host's first process; the others follow."""
    ranks: int = 0
    """Number of ranks on this host."""
    partner: StoreAddress | None = None
    """The host that keeps copies of this host's snapshots; None if no other one does."""

    def of_ranks(self, interface: str, keeper: str = "") -> list[Assignment]:
        """The assignments of the host's ranks. `interface`: network device that leads to the other hosts. `keeper`:
        see `Assignment`."""
        assert self.generation is not None
        return [
            Assignment(
                generation=self.generation,
                rank=self.first_rank + local_rank,
                local_rank=local_rank,
                local_size=self.ranks,
                interface=interface,
                keeper=keeper,
                has_partner=self.partner is not None,
            )
            for local_rank in range(self.ranks)
        ]


@dataclass(frozen=True)
class KeptSnapshots:
    """The complete snapshots of one rank that a keeper has."""

    generation: int
    rank: int
    steps: tuple[int, ...]
    """Steps that were done at each of them."""


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """How the ranks of a host ended a generation."""

    generation: int
    result: str | None = None
    """What rank 0 returned, on its host; None on other hosts, and if the ranks did not end well."""
    failures: tuple[RankFailure, ...] = ()
    step: int = 0
    """Steps that the ranks had done."""
    facts_known: bool = False
    """True if a rank lives that knows the `JobFacts`."""
    snapshots: tuple[KeptSnapshots, ...] = ()
    """The complete snapshots in this host's memory."""


@dataclass(frozen=True, kw_only=True)
class RankPosition:
    """Where a rank is that makes no progress."""

    rank: int
    collectives: int
    """Collectives that it has started, and sends and receives."""
    common: int
    """Of these, collectives that all ranks start equally often; 0 if there are none."""
    waits: bool
    """True if it is inside a function of torch that waits for other ranks."""
    line: str
    """`train.py:12 in forward`; empty if that is not known."""
    longest_step: float
    """Seconds of its longest step."""


@dataclass(frozen=True)
class HostStall:
    """A host whose ranks all make no progress."""

    generation: int
    ranks: tuple[RankPosition, ...]


@dataclass(frozen=True)
class Straggler:
    """A rank that the others wait for most of the time."""

    rank: int
    speed: float
    """Where the others have 1."""
    seconds: float
    """For how long they have been waiting for it; 0 if they no longer do."""


@dataclass(frozen=True)
class Stragglers:
    """The stragglers of a host."""

    generation: int
    ranks: tuple[Straggler, ...]


@dataclass(frozen=True, kw_only=True)
class GivenUpRank:
    """A rank that has taken too long."""

    generation: int
    rank: int
    what: str
    """What was seen of it."""
    line: str


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended, on all hosts; the leader decides it."""

    result: str | None = None
    """What rank 0 returned."""
    error: str = ""
    """What ended the run, as a message; empty if nothing did."""
    is_input_error: bool = False
    stopped: SignalName | None = None
    """The signal that ended the run before its ranks could finish."""
