"""Which files a cache removes to make room: those that are needed last.

When each file is read next is known, because the order of samples is. To remove the one that is needed last is the best
that a cache can do (Belady, 1966).
"""

from collections.abc import Callable, Collection, Mapping

NEVER = 1 << 62
URGENT = -1
"""The use of a file that a reader waits for."""


class Room:
    """The files that take room in a cache, complete or not."""

    def __init__(self, limit: int, sizes: Mapping[str, int]) -> None:
        self.limit = limit
        self._sizes = dict(sizes)
        self._taken = sum(self._sizes.values())

    def __contains__(self, key: str) -> bool:
        return key in self._sizes

    @property
    def is_taken(self) -> bool:
        return bool(self._sizes)

    def add(self, key: str, size: int) -> None:
        self._sizes[key] = size
        self._taken += size

    def remove(self, key: str) -> None:
        self._taken -= self._sizes.pop(key, 0)

    def make(self, size: int, use: int, next_use: Callable[[str], int], kept: Collection[str]) -> list[str] | None:
        """Return what to remove for a file that is needed at position `use`; None if all else is needed before it.

        `next_use`: the position at which a file is needed next. `kept`: files that cannot be removed.
        """
        missing = self._taken + size - self.limit
        if missing <= 0:
            return []
        removed: list[str] = []
        for key in sorted(self._sizes, key=next_use, reverse=True):
            if next_use(key) <= use:
                break
            if key not in kept:
                removed.append(key)
                missing -= self._sizes[key]
                if missing <= 0:
                    return removed
        return None
