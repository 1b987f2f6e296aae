"""Watches the branches that forward and loss take by the values of a whole micro-batch.

`if (flag > 0).any():` decides for all samples of a micro-batch at once. If a sample's result depends on what is
decided, it depends on the samples beside it, so a batch that is split trains something else. The trial before training
cannot see a branch that is rarely taken. So each decision that is new is followed by a test of the micro-batches of
that step.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from onecurve.describe.plan import Plan
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.decisions import Decision, decisions
from onecurve.job.batch import MicroBatch

_NEIGHBOURS = 4
"""Samples of the same batch beside which a micro-batch is tested."""


@dataclass
class BranchWatch:
    """The decisions that a rank has seen so far. All ranks of the model call the same methods."""

    plan: Plan
    share: Callable[[int, int], tuple[int, int]]
    """`share(position, number)`: what this rank reads in a round of the step that begins at `position`."""
    group: Group
    device: torch.device
    read: Callable[[int, int, int], MicroBatch]
    """`read(begin, end, copies)` reads and collates the samples at these positions."""
    test: Callable[[Sequence[MicroBatch], str], None]
    """Raises OnecurveError if the loss of the first micro-batch is not that of its parts, the others. The text names
    what was decided."""
    _known: set[Decision] = field(default_factory=set)
    _new: set[Decision] = field(default_factory=set)

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context manager in which the decisions of this thread are noted."""
        with decisions() as found:
            yield
        self._new |= found - self._known

    def verify(self, step: int, position: int) -> None:
        """Test the micro-batches of a step, before its update, if a rank has made a decision that is new.

        `position`: the first of the step's samples.
        """
        count = torch.tensor([float(len(self._new))], device=self.device)
        if not all_reduce_sum(self.group, count).item():
            return
        new, self._new = self._new, set()
        self._known |= new
        what = ", ".join(sorted(f"{place} is {decided}" for place, decided in new)) or "a decision of another rank"
        for number in range(self.plan.rounds):
            self.test(self._whole_and_parts(position, number), f"step {step}: {what}")

    def _whole_and_parts(self, first: int, number: int) -> list[MicroBatch]:
        """A micro-batch together with some neighbours, and both of them by themselves. `first`: position of the step's
        first sample."""
        begin, end = self.share(first, number)
        last = min(end + _NEIGHBOURS, first + self.plan.global_batch)
        if last > end:
            bounds = [(begin, last), (begin, end), (end, last)]
        else:
            before = max(begin - _NEIGHBOURS, first)
            bounds = [(before, end), (before, begin), (begin, end)]
        return [self.read(*each, 1) for each in bounds]
