"""What a rank may ask for in a step. The answers are added over all ranks, so that all act on them at the same step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_NOT_YET = -2.0
"""More than the one vote for a snapshot."""


def _never() -> bool:
    return False


@dataclass(frozen=True)
class StepFlags:
    """Asked once per step, on every rank."""

    stop: Callable[[], bool] = _never
    """True if this rank was asked to stop, for example by Ctrl-C."""
    save: Callable[[], bool] = _never
    """True if this rank finds that a checkpoint is due by the clock."""
    snapshot: Callable[[], bool] = _never
    """True if a snapshot in memory is due; only the first rank says so."""
    snapshot_blocked: Callable[[], bool] = _never
    """True if this rank cannot take a snapshot yet; then no rank takes one."""
    regroup: Callable[[], bool] = _never
    """True if this rank was asked to go on in another generation."""
    waited: Callable[[], float | None] = lambda: None
    """Share of its time that this rank waits for others; None if that is not known yet."""

    def answers(self, like: Tensor) -> Tensor:
        """[stop, save, snapshot, regroup, waited, ranks that know what they waited] as a tensor on the device of
        `like`.

        It is created there: a copy from the host would make the host wait for the device.
        """
        is_due = self.snapshot()  # asked also if it is blocked: it counts the steps
        snapshot = _NOT_YET if self.snapshot_blocked() else float(is_due)
        waited = self.waited()
        waits = (waited, 1.0) if waited is not None else (0.0, 0.0)
        answers = (float(self.stop()), float(self.save()), snapshot, float(self.regroup()), *waits)
        found = torch.zeros(len(answers), dtype=like.dtype, device=like.device)
        for index, answer in enumerate(answers):
            if answer:  # most are 0: each of the others is a kernel of its own
                found[index] = answer
        return found
