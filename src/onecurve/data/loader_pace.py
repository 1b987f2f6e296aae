"""How many loader processes of a rank work: as many as it takes for the training not to wait for them."""

from typing import NamedTuple

_STEPS = 16
"""A decision is made after so many steps."""
_WAITING = 0.05
"""Of the time, so much may be spent waiting for data."""
_GAIN = 0.97
"""More processes must shorten the steps to this part of their time, or they are taken back."""


class Workers(NamedTuple):
    """Loader processes of a rank: those that work at first, and the most that may."""

    first: int
    most: int

    @staticmethod
    def of(number: "Workers | int") -> "Workers":
        """A fixed number of processes, or what is given."""
        return number if isinstance(number, Workers) else Workers(number, number)


class LoaderPace:
    """Doubles the processes while the training waits for data and that helps."""

    def __init__(self, workers: Workers) -> None:
        self.processes, self._most = workers
        self._fewer = self.processes
        """Processes before the last ones were added."""
        self._steps, self._waited, self._total = 0, 0.0, 0.0
        self._before: float | None = None
        """Seconds of a step at that time."""

    def add(self, waited: float, total: float) -> None:
        """A step has taken so many seconds, of which the training has waited some for data."""
        self._steps += 1
        self._waited += waited
        self._total += total
        if self._steps < _STEPS:
            return
        seconds, share = self._total / self._steps, self._waited / max(self._total, 1e-9)
        self._steps, self._waited, self._total = 0, 0.0, 0.0
        if self._before is not None and seconds > _GAIN * self._before:
            self.processes = self._most = self._fewer
        elif share > _WAITING and self.processes < self._most:
            self._fewer, self._before = self.processes, seconds
            self.processes = min(2 * self.processes, self._most)
            return
        self._before = None
