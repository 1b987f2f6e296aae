"""The states of lanes from time to time, in files: a lane that is opened again continues from one of them.

They save time and nothing else. Whether they are there, are old, or are those of another reader of the lane, the
samples are the same: from the state on, a lane is read forward to the sample that is needed.
"""

import logging
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

_SECONDS = 10.0
"""Between two states of a lane."""

_log = logging.getLogger(__name__)


class LaneStates:
    """Of each lane, some states: the newest ones, and older ones at longer and longer distances, because the checkpoint
    from which a run continues may be old."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._times: dict[int, float] = {}

    def offer(self, lane: int, taken: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Store a state if the last one is some time ago. `taken`: samples of the lane that were read before it."""
        now = time.monotonic()
        if self._folder is None or now - self._times.setdefault(lane, now) < _SECONDS:
            return
        self._times[lane] = now
        found = dict(state())
        try:
            self._store(self._folder, lane, {**self._stored(lane), taken: found})
        except Exception as error:  # whatever keeps it from being stored: it would only save time
            _log.warning("the state of lane %d cannot be stored: %s", lane, error)

    def latest(self, lane: int, offset: int) -> tuple[int, Mapping[str, Any]] | None:
        """The newest state before a sample, and how many samples were read before that."""
        stored = self._stored(lane)
        known = [taken for taken in stored if taken <= offset]
        return (max(known), stored[max(known)]) if known else None

    def _store(self, folder: Path, lane: int, states: Mapping[int, Mapping[str, Any]]) -> None:
        kept = {taken: states[taken] for taken in spaced(sorted(states))}
        folder.mkdir(parents=True, exist_ok=True)
        handle, staging = tempfile.mkstemp(dir=folder, prefix=".lane-")
        try:
            with os.fdopen(handle, "wb") as file:
                torch.save(kept, file)
            Path(staging).replace(_path(folder, lane))
        except BaseException:
            Path(staging).unlink(missing_ok=True)
            raise

    def _stored(self, lane: int) -> dict[int, Mapping[str, Any]]:
        if self._folder is None or not (path := _path(self._folder, lane)).exists():
            return {}
        try:
            stored = torch.load(path, weights_only=True)
            return {int(taken): state for taken, state in stored.items()}
        except Exception as error:  # a damaged file fails in many ways
            _log.warning("%s: it cannot be read, and is not used (%s)", path, error)
            return {}


def spaced(taken: list[int]) -> list[int]:
    """Of numbers in ascending order, keep the last two, and of those whose distances to the last have the same number
    of bits, the first."""
    firsts = {(taken[-1] - each).bit_length(): each for each in reversed(taken)}
    return sorted({*firsts.values(), *taken[-2:]})


def _path(folder: Path, lane: int) -> Path:
    return folder / f"lane-{lane:05d}.pt"
