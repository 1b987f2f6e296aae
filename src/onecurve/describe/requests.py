"""What a launcher asks of the ranks it starts: one request per verb, passed as JSON."""

from dataclasses import dataclass, field

from onecurve.describe.plan import Precision


@dataclass(frozen=True)
class RunRequest:
    """What the launcher hands to every rank."""

    script: str
    arguments: tuple[str, ...]
    plan: str
    out: str
    fresh: bool
    quiet: bool
    tensorboard: bool
    predicted: dict[str, float] = field(default_factory=dict)
    """Seconds of a step by cause, where the run was planned here."""
    result: str = ""
    """Where rank 0 leaves the summary for the launcher."""


@dataclass(frozen=True)
class CheckRequest:
    """What the launcher hands to every rank."""

    script: str
    arguments: tuple[str, ...]
    plans: tuple[str, ...]
    ranks: int
    steps: int
    precision: Precision
    result: str
    quiet: bool


@dataclass(frozen=True)
class ProbeRequest:
    """What the launcher hands to every rank."""

    out: str
    quiet: bool
