"""A page of memory that a rank shares with its keeper: how far the rank is, readable also if it hangs or is gone."""

import mmap
import os
import struct
import time
from collections import deque

_NUMBER = struct.Struct("<Q")
_MAX_LINE_BYTES = 512
_RECENT_STEPS = 15


class _Field:
    """A whole number at a fixed place of the page. It is written at once: a reader never sees half of it."""

    def __init__(self, place: int) -> None:
        self._offset = place * _NUMBER.size

    def __get__(self, page: "RankPage", _: type | None = None) -> int:
        return int(_NUMBER.unpack_from(page.memory, self._offset)[0])

    def __set__(self, page: "RankPage", value: int) -> None:
        _NUMBER.pack_into(page.memory, self._offset, value)


class RankPage:
    """The page as one of the two processes has it."""

    step = _Field(0)
    """Steps done."""
    facts_known = _Field(1)
    """1 if the rank knows the `JobFacts`."""
    is_training = _Field(2)
    """1 from the first step of a generation to the end of its last one."""
    longest_step = _Field(3)
    """Milliseconds of the longest step, with everything between it and the step before."""
    typical_step = _Field(10)
    """Milliseconds of a step, the median of the latest."""
    samples = _Field(4)
    """Counts how often the rank has said where it is. It stands still while the interpreter lock is held."""
    collectives = _Field(5)
    common = _Field(6)
    waits = _Field(7)
    """See `onecurve.device.waiting.Progress`."""
    _copied = _Field(8)
    _line_bytes = _Field(9)
    _LINE = 11 * _NUMBER.size

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        try:
            self.memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)
        self._last_step: float | None = None
        self._recent: deque[int] = deque(maxlen=_RECENT_STEPS)

    @staticmethod
    def create() -> int:
        """Return the descriptor of a new page."""
        descriptor = os.memfd_create("onecurve-rank", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return descriptor

    def begin_generation(self) -> None:
        self.is_training, self._last_step = 0, None

    def finish_step(self, step: int) -> None:
        """Say that a step is done."""
        now = time.monotonic()
        if self._last_step is not None:
            self._recent.append(round(1000 * (now - self._last_step)))
            self.longest_step = max(self.longest_step, self._recent[-1])
            self.typical_step = sorted(self._recent)[len(self._recent) // 2]
        self.step, self._last_step = step, now
        self.is_training = 1

    @property
    def line(self) -> str:
        """What the main thread of the rank was executing about a second ago; empty if that is not known."""
        size = min(self._line_bytes, _MAX_LINE_BYTES)
        return self.memory[self._LINE : self._LINE + size].decode(errors="replace")

    @line.setter
    def line(self, text: str) -> None:
        content = text.encode()[:_MAX_LINE_BYTES]
        self.memory[self._LINE : self._LINE + len(content)] = content
        self._line_bytes = len(content)

    def note_copied(self, generation: int, step: int) -> None:
        """Say that another host has the snapshot of this step. Written by the keeper."""
        self._copied = _copied(generation, step)

    def is_copied(self, generation: int, step: int) -> bool:
        """True if another host has the snapshot of this step."""
        return self._copied >= _copied(generation, step)


def _copied(generation: int, step: int) -> int:
    """One number for both: a note of an earlier generation, which may have been further, must not count."""
    return (generation << 40) + step
