"""A page of memory that a rank shares with its keeper: how far the rank is, readable also if it hangs or is gone."""

import mmap
import os
import struct

_NUMBER = struct.Struct("<Q")
_STEP, _FACTS, _COPIED, _LINE = 0, 8, 16, 24
"""Where the fields begin."""

_MAX_LINE_BYTES = 512


class RankPage:
    """The page as one of the two processes has it."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        try:
            self._memory = mmap.mmap(descriptor, mmap.PAGESIZE)
        finally:
            os.close(descriptor)

    @staticmethod
    def create() -> int:
        """Return the descriptor of a new page."""
        descriptor = os.memfd_create("onecurve-rank", os.MFD_CLOEXEC)
        os.ftruncate(descriptor, mmap.PAGESIZE)
        return descriptor

    @property
    def step(self) -> int:
        """Steps done."""
        return int(_NUMBER.unpack_from(self._memory, _STEP)[0])

    @step.setter
    def step(self, value: int) -> None:
        _NUMBER.pack_into(self._memory, _STEP, value)

    @property
    def facts_known(self) -> bool:
        """True if the rank knows the `JobFacts`."""
        return bool(_NUMBER.unpack_from(self._memory, _FACTS)[0])

    @facts_known.setter
    def facts_known(self, value: bool) -> None:
        _NUMBER.pack_into(self._memory, _FACTS, value)

    @property
    def line(self) -> str:
        """What the main thread of the rank was executing about a second ago; empty if that is not known."""
        size = int(_NUMBER.unpack_from(self._memory, _LINE)[0])
        begin = _LINE + _NUMBER.size
        return self._memory[begin : begin + min(size, _MAX_LINE_BYTES)].decode(errors="replace")

    @line.setter
    def line(self, text: str) -> None:
        content = text.encode()[:_MAX_LINE_BYTES]
        begin = _LINE + _NUMBER.size
        self._memory[begin : begin + len(content)] = content
        _NUMBER.pack_into(self._memory, _LINE, len(content))

    def note_copied(self, generation: int, step: int) -> None:
        """Say that another host has the snapshot of this step. Written by the keeper."""
        _NUMBER.pack_into(self._memory, _COPIED, _copied(generation, step))

    def is_copied(self, generation: int, step: int) -> bool:
        """True if another host has the snapshot of this step."""
        return int(_NUMBER.unpack_from(self._memory, _COPIED)[0]) >= _copied(generation, step)


def _copied(generation: int, step: int) -> int:
    """One number for both: a note of an earlier generation, which may have been further, must not count."""
    return (generation << 40) + step
