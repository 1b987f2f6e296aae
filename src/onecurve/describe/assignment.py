"""What a rank process is told at the start of a generation, and how a rank can end it."""

from dataclasses import dataclass

from onecurve.describe.generation import Generation


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """A rank's place in one generation."""

    generation: Generation
    rank: int
    local_rank: int
    """Rank among the processes of this host."""
    local_size: int
    """Number of ranks on this host."""
    interface: str
    """Network device that leads to the other ranks, for example `lo` or `eth0`."""
    keeper: str = ""
    """HOST:PORT at which this host's keeper serves snapshots to other hosts; empty if there are none."""
    has_partner: bool = False
    """True if the rank's snapshots are copied to another host."""


@dataclass(frozen=True, kw_only=True)
class RankFailure:
    """Why a rank could not end a generation."""

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
    """True if the rank only lost the connection to another one, or was told to leave. Its process lives on."""
    is_hang: bool = False
    """True if the rank no longer answered, and was killed."""
    is_out_of_memory: bool = False
    """True if there was no memory left for the rank."""
    is_corrupted: bool = False
    """True if the rank's weights are not those of the other replicas."""
    exit_status: int = 1
    """The process's exit status; -n if signal n ended it."""
