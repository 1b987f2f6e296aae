"""What a rank process is told at the start of a generation, and how a rank can end it."""

from dataclasses import dataclass, field

from onecurve.describe.plan import Plan


@dataclass(frozen=True)
class StoreAddress:
    """Where the store of a generation is served, and the key of those who may use it."""

    host: str
    port: int
    key: str = field(repr=False)
    """As hexadecimal digits."""


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A rank's place in one generation: one life of the process group."""

    generation: int
    """Number of the generation, counted from 1."""
    rank: int
    size: int
    """Number of ranks."""
    local_rank: int
    """Rank among the processes of this host."""
    local_size: int
    """Number of ranks on this host."""
    store: StoreAddress
    """The store through which the ranks find each other."""
    interface: str
    """Network device that leads to the other ranks, for example `lo` or `eth0`."""
    plan: Plan | None = None
    """How to split the job; None if the request says it."""


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """Why a rank process ended before its work was done."""

    rank: int
    time: float
    """Seconds since the epoch."""
    text: str = ""
    """What the rank said about it; empty if it said nothing."""
    is_input_error: bool = False
    """True if the rank refused its input, which is shown without its number."""
    is_interrupt: bool = False
    """True if the rank ended because it was asked to stop."""
    lost_connection: bool = False
    """True if the rank only lost the connection to another one."""
    exit_status: int = 1
    """The process's exit status; -n if signal n ended it."""
