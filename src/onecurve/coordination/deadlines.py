"""Deadlines that are moved often and pass rarely."""

import heapq


class Deadlines:
    """Finds the numbers whose deadline has passed, without looking at the others.

    Moving a deadline only notes the new time. The heap keeps the old one, and learns the new one when the old one
    passes: a lease that is renewed many times is looked at once per lease time.
    """

    def __init__(self) -> None:
        self._times: dict[int, float] = {}
        self._heap: list[tuple[float, int]] = []

    def set(self, number: int, time: float) -> None:
        """Set or move the deadline of a number. A deadline is only moved to a later time."""
        if number not in self._times:
            heapq.heappush(self._heap, (time, number))
        self._times[number] = time

    def remove(self, number: int) -> None:
        """Forget a number. The heap forgets it when its deadline passes."""
        self._times.pop(number, None)

    def pop_passed(self, now: float) -> list[int]:
        """Remove and return the numbers whose deadline is not later than `now`, in the order of their deadlines."""
        passed = []
        while self._heap and self._heap[0][0] <= now:
            noted, number = heapq.heappop(self._heap)
            time = self._times.get(number)
            if time is None:
                continue
            if time > noted:
                heapq.heappush(self._heap, (time, number))
            else:
                del self._times[number]
                passed.append(number)
        return passed
