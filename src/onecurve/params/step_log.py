"""The steps of one copy of some rows: what the ranks have pushed, and up to which step it has been added.

A pull of step k is answered with the rows after step k − 1. Step k is added to the rows once all ranks have pushed it,
its verdict is known, and all ranks have received the rows of step k, which must not have it. So a copy that is behind
cannot answer with old rows, and none is ahead of what a rank may still ask for.

After a failure, other ranks continue from an earlier step. They are another crew: the log then forgets what the crews
before have pushed in later steps.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from onecurve.job.row_point import StepVerdict

Part = TypeVar("Part")
"""What a rank pushes for these rows in one step."""


@dataclass(frozen=True)
class RowCrew:
    """The ranks that train together."""

    number: int
    """Later crews have higher numbers."""
    ranks: int
    start: int = 0
    """The step after which they begin: up to it, the steps are those of earlier crews."""


@dataclass(frozen=True)
class ReadyStep(Generic[Part]):
    """A step that can be added to the rows."""

    step: int
    parts: tuple[Part, ...]
    """What the ranks have pushed, in the order of the ranks."""
    verdict: StepVerdict


@dataclass
class StepLog(Generic[Part]):
    """Steps are counted from 1."""

    crew: RowCrew
    applied: int = 0
    """The rows have all steps up to this one."""
    staged: dict[int, dict[int, Part]] = field(default_factory=dict)
    """What was pushed in later steps, by step and rank."""
    verdicts: dict[int, StepVerdict] = field(default_factory=dict)
    """Of the latest steps. Those that have been added are kept for copies that are behind."""
    received: dict[int, int] = field(default_factory=dict)
    """The newest step whose rows each rank is known to have received."""
    earlier_ranks: dict[int, int] = field(default_factory=dict)
    """The number of ranks in steps of earlier crews that may not have been added."""
    kept_verdicts: int = 2
    """Number of added steps that are remembered: as many as were told at once."""

    def stage(self, step: int, rank: int, part: Part) -> None:
        """Keep what a rank has pushed. What is known already has no effect."""
        if step > self.applied:
            self.staged.setdefault(step, {}).setdefault(rank, part)

    def is_complete(self, step: int) -> bool:
        """True if all ranks have pushed a step that was not added yet."""
        return 0 < len(self.staged.get(step, {})) == self.ranks_in(step)

    def ranks_in(self, step: int) -> int:
        """The number of ranks that push this step."""
        return self.earlier_ranks.get(step, self.crew.ranks)

    def decide(self, verdicts: Mapping[int, StepVerdict]) -> None:
        """Take in the verdicts on steps."""
        self.kept_verdicts = max(self.kept_verdicts, len(verdicts))
        for step, verdict in verdicts.items():
            self.verdicts.setdefault(step, verdict)

    def note_received(self, rank: int, step: int) -> None:
        """A rank has received the rows of all steps up to this one."""
        self.received[rank] = max(step, self.received.get(rank, self.crew.start))

    def enter(self, crew: RowCrew) -> None:
        """Follow a later crew. The rows have no step after the one after which it begins."""
        self.applied = min(self.applied, crew.start)
        self.earlier_ranks = {step: self.ranks_in(step) for step in range(self.applied + 1, crew.start + 1)}
        self.staged = {step: parts for step, parts in self.staged.items() if step <= crew.start}
        self.verdicts = {step: verdict for step, verdict in self.verdicts.items() if step <= crew.start}
        self.received = {}
        self.crew = crew

    def reaches(self, crew: RowCrew) -> bool:
        """True if this copy has, or can add, all steps after which a later crew begins."""
        return all(self.is_complete(step) for step in range(self.applied + 1, crew.start + 1))

    def copy(self) -> "StepLog[Part]":
        return replace(
            self,
            staged={step: dict(parts) for step, parts in self.staged.items()},
            verdicts=dict(self.verdicts),
            received=dict(self.received),
            earlier_ranks=dict(self.earlier_ranks),
        )

    def split(self, divide: Callable[[Part], tuple[Part, Part]]) -> "StepLog[Part]":
        """Keep the first part of all that is staged; return a log with the second."""
        other = self.copy()
        for step, parts in self.staged.items():
            for rank, part in parts.items():
                parts[rank], other.staged[step][rank] = divide(part)
        return other

    def merge(self, other: "StepLog[Part]") -> None:
        """Take in all that another copy of the same crew knows about later steps."""
        for step, parts in other.staged.items():
            for rank, part in parts.items():
                self.stage(step, rank, part)
        self.decide(other.verdicts)
        for rank, step in other.received.items():
            self.note_received(rank, step)

    def ready(self, may_add: Callable[[int], bool] = lambda _: True) -> Iterator[ReadyStep[Part]]:
        """Yield the steps that can be added now, one after the other; each counts as added when the next is asked for.

        Whoever iterates must add each of them. `may_add`: another condition that a step must meet.
        """
        while (step := self.applied + 1) in self.verdicts and self.is_complete(step):
            received = (self.received.get(rank, self.crew.start) for rank in range(self.crew.ranks))
            if any(newest < step for newest in received) or not may_add(step):
                return
            parts = self.staged[step]
            yield ReadyStep(step, tuple(parts[rank] for rank in sorted(parts)), self.verdicts[step])
            self.applied = step
            del self.staged[step]
            self.earlier_ranks.pop(step, None)
            for old in [number for number in self.verdicts if number <= step - self.kept_verdicts]:
                del self.verdicts[old]
