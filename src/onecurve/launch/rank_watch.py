"""Watches the ranks of this host while they train: which are stopped, and where they are if none makes progress."""

from collections.abc import Sequence
from dataclasses import dataclass

from onecurve.describe.host import RankPosition
from onecurve.launch.process import is_stopped
from onecurve.launch.rank_process import RankProcess

POLL_SECONDS = 0.5
_STOPPED_SECONDS = 4.0
"""A rank that was stopped for this time is given up."""
_STALL_SECONDS = 3.0
"""No progress for this time is worth telling the other hosts, unless two steps take as long."""
_LOCKED_SECONDS = 1.0
"""A rank that has not said where it is for this time holds the interpreter lock, and is asked by a signal."""


@dataclass
class _Seen:
    """What was seen of a rank. Time is counted in polls: while this process is stopped, as by Ctrl-Z, none passes."""

    progress: tuple[int, int] = (0, 0)
    samples: int = 0
    still_polls: int = 0
    stopped_polls: int = 0
    silent_polls: int = 0
    is_asked: bool = False
    """True if the rank was asked by a signal since it last said where it is."""


class RankWatch:
    """Looks at the ranks of one generation every `POLL_SECONDS`."""

    def __init__(self, ranks: Sequence[RankProcess]) -> None:
        self._ranks = ranks
        self._seen = [_Seen() for _ in ranks]

    def poll(self) -> bool:
        """Look at all ranks; return True if one was given up, because it was stopped and stays so."""
        given_up = False
        for rank, seen in zip(self._ranks, self._seen, strict=True):
            _look(rank, seen)
            if seen.stopped_polls * POLL_SECONDS >= _STOPPED_SECONDS:
                rank.give_up(f"stopped for {_STOPPED_SECONDS:g} s")
                given_up = True
        return given_up

    def stall(self) -> tuple[RankPosition, ...]:
        """Where the ranks are, if all of them train and none has made progress for a while; otherwise ()."""
        pages = [rank.page for rank in self._ranks if rank.page is not None]
        if len(pages) < len(self._ranks) or not all(page.is_training for page in pages):
            return ()
        limit = max(_STALL_SECONDS, 2 * max(page.typical_step for page in pages) / 1000)
        still = min(seen.still_polls for seen in self._seen) * POLL_SECONDS
        if still < limit - POLL_SECONDS:
            return ()
        for rank, seen in zip(self._ranks, self._seen, strict=True):
            _ask_if_silent(rank, seen)
        if still < limit:
            return ()
        return tuple(_position(rank, seen) for rank, seen in zip(self._ranks, self._seen, strict=True))


def _look(rank: RankProcess, seen: _Seen) -> None:
    is_working = rank.pid is not None and not rank.has_left
    seen.stopped_polls = seen.stopped_polls + 1 if is_working and is_stopped(rank.pid or 0) else 0
    page = rank.page
    if page is None:
        return
    progress = (page.collectives, page.step)
    seen.still_polls = seen.still_polls + 1 if progress == seen.progress else 0
    seen.silent_polls = seen.silent_polls + 1 if page.samples == seen.samples else 0
    seen.progress, seen.samples = progress, page.samples
    seen.is_asked = seen.is_asked and seen.silent_polls > 0


def _ask_if_silent(rank: RankProcess, seen: _Seen) -> None:
    """Ask only once: a signal may interrupt a call of the system in the user's code."""
    if _is_silent(seen) and not seen.is_asked and rank.pid is not None and rank.stack is not None:
        seen.is_asked = True
        rank.stack.ask(rank.pid)


def _is_silent(seen: _Seen) -> bool:
    return seen.silent_polls * POLL_SECONDS >= _LOCKED_SECONDS


def _position(rank: RankProcess, seen: _Seen) -> RankPosition:
    assert rank.page is not None
    line = rank.page.line
    if seen.is_asked and rank.stack is not None:
        line = rank.stack.line or line
    return RankPosition(
        rank=rank.rank,
        collectives=rank.page.collectives,
        common=rank.page.common,
        waits=bool(rank.page.waits) and not _is_silent(seen),
        line=line,
        longest_step=rank.page.longest_step / 1000,
    )
