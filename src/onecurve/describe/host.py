"""What the hosts of a run tell each other."""

from dataclasses import dataclass, field

from onecurve.describe.assignment import Assignment, RankFailure, StoreAddress
from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import OnecurveError, SignalName
from onecurve.describe.plan import Plan


@dataclass(frozen=True, kw_only=True)
class HostRegistration:
    """What a host says about itself when it joins a run."""

    name: str
    address: str
    """Address at which the other hosts reach it."""
    devices: Cluster
    """Its devices, as a cluster of one host."""
    versions: dict[str, str]
    """Versions of onecurve, torch and Python."""
    job: dict[str, str]
    """The fingerprint of its job, field by field."""


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
    generation: int = 0
    work: str = ""
    """What the ranks do: a verb of their program."""
    first_rank: int = 0
    """Rank of the host's first process; the others follow."""
    ranks: int = 0
    """Number of ranks on this host."""
    size: int = 0
    """Number of ranks on all hosts."""
    store: StoreAddress | None = None
    """None if there is no assignment."""
    plan: Plan | None = None
    predicted: dict[str, float] = field(default_factory=dict)
    """Predicted seconds of a step by cause; empty if the plan was given."""

    def of_ranks(self, interface: str) -> list[Assignment]:
        """The assignments of the host's ranks. `interface`: network device that leads to the other hosts."""
        assert self.store is not None
        return [
            Assignment(
                generation=self.generation,
                rank=self.first_rank + local_rank,
                size=self.size,
                local_rank=local_rank,
                local_size=self.ranks,
                store=self.store,
                interface=interface,
                plan=self.plan,
            )
            for local_rank in range(self.ranks)
        ]


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """How the ranks of a host ended a generation."""

    result: str | None = None
    """What rank 0 returned, on its host; None on other hosts, and if the ranks did not end well."""
    failures: tuple[RankFailure, ...] = ()


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
