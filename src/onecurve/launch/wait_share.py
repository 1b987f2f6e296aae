"""Which share of its time a rank waits for others, from samples that another of its threads takes."""

from collections import deque

_WINDOW = 60
_LEAST = 10


class WaitShare:
    """The share of the latest samples in which the rank was waiting. One thread adds samples, another one asks.

    DistributedDataParallel waits inside backward, where only this is seen: all collectives have been started. So a
    sample also counts as waiting if no collective was started between it and the end of the rounds.
    """

    def __init__(self) -> None:
        self._new: deque[tuple[int, bool]] = deque(maxlen=10 * _WINDOW)
        self._counted: deque[bool] = deque(maxlen=_WINDOW)

    def add(self, collectives: int, waits: bool) -> None:
        """Take in a sample. `collectives`: see `onecurve.device.waiting.Progress`."""
        self._new.append((collectives, waits))

    def at_end_of_rounds(self, collectives: int) -> float | None:
        """Return the share now, at the end of a step's rounds; None if there are too few samples."""
        while self._new:
            sample, waits = self._new.popleft()
            self._counted.append(waits or sample == collectives)
        return sum(self._counted) / len(self._counted) if len(self._counted) >= _LEAST else None
