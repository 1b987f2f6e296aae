"""Which step is computed by which worker, and which count: nothing here sends, waits or looks at a clock.

A ticket is the number of a step, whose samples it names. A worker computes it, is given the number of a row step,
pushes its gradients in it, and says so; only then the ticket counts, by the verdict on that row step. If the worker is
lost before, the row step is skipped and the ticket is handed out again: so each counts once.

Row steps are added in the order of their numbers. At most `_OPEN_STEPS` of them are pushed at the same time, so that
each push can carry the verdicts on all that the servers may not know.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from onecurve.job.row_point import StepVerdict

_OPEN_STEPS = 16
_KEPT_VERDICTS = 2 * _OPEN_STEPS


@dataclass
class Tickets:
    """The tickets of a run, from `counted + 1` to `last`."""

    counted: int
    """Tickets that count: all up to this number, when nobody has one."""
    last: int
    row_step: int
    """The newest row step that was given a number."""
    pauses_after: Callable[[int], bool] = lambda _: False
    """True if no ticket may be handed out after this one until all count, because the weights are then looked at."""
    verdicts: dict[int, StepVerdict] = field(default_factory=dict)
    """On the latest row steps."""
    _handed_out: int = field(init=False)
    _returned: list[int] = field(default_factory=list)
    """Tickets of workers that were lost."""
    _open: set[int] = field(default_factory=set)
    """Row steps without a verdict."""
    _pause: int | None = None

    def __post_init__(self) -> None:
        self._handed_out = self.counted

    @property
    def is_over(self) -> bool:
        """True if all count."""
        return self.counted == self.last

    @property
    def is_paused(self) -> bool:
        """True if all tickets up to a pause count: nobody pushes, and the rows do not change."""
        return self.counted == self._pause

    def hand_out(self) -> int | None:
        """Return a ticket; None if there is none now."""
        if self._returned:
            self._returned.sort()
            return self._returned.pop(0)
        if self._handed_out == (self.last if self._pause is None else self._pause):
            return None
        self._handed_out += 1
        if self._pause is None and (self.pauses_after(self._handed_out) or self._handed_out == self.last):
            self._pause = self._handed_out
        return self._handed_out

    def pause(self) -> None:
        """Pause as soon as possible, after one more ticket at least."""
        self._pause = min(self.last, max(self._handed_out, self.counted + 1), self._pause or self.last)

    def go_on(self) -> None:
        """Hand out tickets again."""
        self._pause = None

    def number_step(self) -> int | None:
        """Return the number of a row step, for a push; None if there are too many now."""
        if self._open and self.row_step + 1 - min(self._open) >= _OPEN_STEPS:
            return None
        self.row_step += 1
        self._open.add(self.row_step)
        return self.row_step

    def count(self, pushed: tuple[int, StepVerdict] | None) -> None:
        """Count a ticket. `pushed`: its row step with the verdict on it; None if it was not finite."""
        if pushed is not None:
            self._decide(*pushed)
        self.counted += 1

    def return_ticket(self, ticket: int) -> None:
        """Hand out a ticket again: its worker is lost."""
        self._returned.append(ticket)

    def skip(self, row_step: int) -> None:
        """A row step in which something was pushed for every slot is to change nothing."""
        self._decide(row_step, StepVerdict(is_skipped=True))

    @property
    def known(self) -> int:
        """All row steps up to this one have verdicts."""
        return min(self._open, default=self.row_step + 1) - 1

    def _decide(self, row_step: int, verdict: StepVerdict) -> None:
        self._open.remove(row_step)
        self.verdicts[row_step] = verdict
        for old in [number for number in self.verdicts if number <= self.row_step - _KEPT_VERDICTS]:
            del self.verdicts[old]
