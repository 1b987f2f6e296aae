"""What `onecurve status` shows: how a run is doing."""

from dataclasses import dataclass, field
from typing import Literal

RunState = Literal["running", "finished", "stopped", "silent"]
"""`stopped`: it ended before its last step: by itself, or its processes are gone. `silent`: it has no end, and has
recorded nothing for a while."""


@dataclass(frozen=True, kw_only=True)
class RankStatus:
    """How one rank is doing."""

    rank: int
    host: str
    step: int
    """Newest step that it has recorded."""
    age: float
    """Seconds since its newest record."""
    own_seconds: float
    """Seconds of a step in which it does not wait for others."""
    waiting: float
    """Fraction of its time that it waits for others."""
    data: float
    """Fraction of its time that it waits for data."""
    memory: int
    """Peak, in bytes."""


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """How a run is doing, from its records alone."""

    folder: str
    state: RunState
    plan: str
    device: str
    ranks: int
    hosts: int
    step: int
    steps: int
    epoch: float | None
    """Epochs done; None if the data has no length."""
    loss: float
    losses: tuple[float, ...]
    """Losses over the run, thinned."""
    lr: float
    step_seconds: float
    """Mean of the counted steps, with evaluations and checkpoints."""
    samples_per_second: float
    seconds_left: float
    """Until the last step; 0 if the run is not in progress."""
    memory: int
    """The most bytes that a rank has used."""
    age: float
    """Seconds since the newest record."""
    checkpoint: str
    """The newest checkpoint, for a person; empty if there is none."""
    evaluation: str
    """The newest evaluation, for a person; empty if there is none."""
    events: tuple[str, ...]
    """The newest events, oldest first."""
    utilization: float | None = None
    """Model FLOPs utilization: the model's own FLOPs, as a fraction of the devices' peak in the step time; None if the
    run was not planned by `onecurve run`."""
    rank_status: tuple[RankStatus, ...] = field(default=())
