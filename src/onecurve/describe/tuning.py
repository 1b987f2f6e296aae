"""What `onecurve tune` has tried, and what it found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from onecurve.describe.plan import Plan

Outcome = Literal["finished", "pruned", "failed", "running"]


@dataclass(frozen=True, kw_only=True)
class TunedTrial:
    """One trial of a study: a run with some arguments."""

    number: int
    arguments: Mapping[str, str]
    """The searched arguments, as texts."""
    outcome: Outcome
    """`pruned`: others were better at the same step, or it diverged."""
    value: float | None
    """What the study makes small or large; None if the trial was not finished."""
    steps: int
    """Training steps that were done."""
    seconds: float
    curve: tuple[tuple[int, float], ...]
    """(step, value), as far as the trial came."""
    note: str = ""
    """Why it was pruned or has failed, for a person."""


@dataclass(frozen=True, kw_only=True)
class Tuning:
    """A study, and its best trial."""

    out: str
    """The study's folder; that of a trial is `trials/` and its number in it."""
    objective: str
    """What is compared: `evaluation loss`, `evaluation accuracy`, `training loss`."""
    followed: str
    """What decides which trials are pruned; it is compared while they run."""
    maximize: bool
    trials: tuple[TunedTrial, ...]
    """The best first."""
    importance: Mapping[str, float]
    """How much of the differences between trials each argument explains; empty if there are too few trials."""
    command: str
    """Trains with the best arguments; empty if no trial was finished."""
    trial_steps: int
    """Training steps of a trial that is finished."""
    seconds: float

    @property
    def best(self) -> TunedTrial | None:
        first = self.trials[0] if self.trials else None
        return first if first is not None and first.outcome == "finished" else None

    @property
    def steps(self) -> int:
        """Training steps of all trials."""
        return sum(trial.steps for trial in self.trials)


@dataclass(frozen=True, kw_only=True)
class RangeTest:
    """A run in which the learning rate grew from step to step."""

    out: str
    """The run's folder."""
    argument: str
    """The argument of the job that is the learning rate."""
    points: tuple[tuple[float, float], ...]
    """(learning rate, smoothed training loss), up to where the training diverges."""
    fastest: float
    """The learning rate at which the loss falls fastest."""
    lowest: float
    """The learning rate at which the loss is lowest; larger ones make it grow."""


@dataclass(frozen=True, kw_only=True)
class BatchChoice:
    """A training with one global batch, and what it takes."""

    global_batch: int
    lr: float
    """Learning rate, before the schedule."""
    steps: int
    samples: int
    hours: float
    """Predicted, on this host."""
    plan: Plan


@dataclass(frozen=True, kw_only=True)
class BatchTest:
    """A run in which the noise of the gradients was measured, and the batch that it suggests."""

    out: str
    """The run's folder."""
    noise_scale: float
    """Gradient noise scale, in samples."""
    rule: str
    """How the learning rate follows the batch: `linear` or `square root`."""
    now: BatchChoice
    suggested: BatchChoice
    """Reaches about the same loss; equal to `now` if its batch is the best."""
