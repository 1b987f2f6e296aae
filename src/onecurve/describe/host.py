"""What the hosts of a run tell each other."""

from dataclasses import dataclass, field

from onecurve.describe.assignment import RankFailure
from onecurve.describe.cluster import Cluster
from onecurve.describe.errors import SignalName
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


@dataclass(frozen=True, kw_only=True)
class HostAssignment:
    """A host's place in one generation."""

    generation: int
    first_rank: int
    """Rank of the host's first process; the others follow."""
    ranks: int
    """Number of ranks on this host."""
    size: int
    """Number of ranks on all hosts."""
    store_host: str
    store_port: int
    plan: Plan | None = None
    predicted: dict[str, float] = field(default_factory=dict)
    """Predicted seconds of a step by cause; empty if the plan was given."""


@dataclass(frozen=True, kw_only=True)
class HostReport:
    """How the ranks of a host ended a generation."""

    result: str | None = None
    """What rank 0 returned, on its host; None on other hosts, and if the ranks did not end well."""
    failures: tuple[RankFailure, ...] = ()
    stopped: SignalName | None = None
    """The signal that killed the ranks before they could finish."""


@dataclass(frozen=True, kw_only=True)
class RunEnd:
    """How a run ended, on all hosts; the leader decides it."""

    result: str | None = None
    """What rank 0 returned."""
    error: str = ""
    """What ended the run, as a message; empty if nothing did."""
    is_input_error: bool = False
    stopped: SignalName | None = None
    """The signal that killed the ranks before they could finish."""
