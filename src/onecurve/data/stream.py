"""Samples that come one after the other, in lanes: from sockets, generators, or datasets that can only be iterated.

The sample at position p is the next one of lane p mod lanes, so which samples a step has does not depend on who reads
them. A reader goes forward in a lane by reading what it does not need, and backward by opening the lane again.
"""

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from onecurve.data.function_identity import Identity
from onecurve.data.lane_states import LaneStates
from onecurve.data.source import Source
from onecurve.data.stream_order import StreamOrder
from onecurve.describe.errors import OnecurveError
from onecurve.describe.seed import mix
from onecurve.device.rng import seed_all

OpenLane = Callable[[int], Iterable[Any]]
_ENDLESS = 1 << 62
_TELL_SECONDS = 2.0
"""A reader that skips for longer says so."""


class StreamSource(Source):
    """A fixed number of lanes. A lane that comes to its end begins anew."""

    has_end = False

    def __init__(self, open_lane: OpenLane, lanes: int, note: str = "") -> None:
        if isinstance(lanes, bool) or not isinstance(lanes, int) or lanes < 1:
            raise OnecurveError(f"stream: lanes must be an integer of at least 1, got {lanes!r}")
        super().__init__(np.full(lanes, _ENDLESS // lanes), lanes)
        self.note = note
        self._open_lane, self._lanes = open_lane, lanes
        self._states = LaneStates(None)
        self._open: dict[int, _Lane] = {}
        self._process, self._seed = os.getpid(), 0

    def __len__(self) -> int:
        raise TypeError("a stream has no length")

    def __getitem__(self, index: int) -> Any:
        raise TypeError("a stream has no samples by number; iterate over what your function returns")

    def read_at(self, index: int) -> Any:
        return self.read(index % self._lanes, index // self._lanes)

    def read(self, piece: int, offset: int) -> Any:
        if self._process != os.getpid():  # a forked process would share sockets and files with its parent
            self._open, self._process = {}, os.getpid()
        lane = self._open.get(piece)
        if lane is None or lane.taken > offset:
            lane = self._open[piece] = _Lane(piece, self._open_lane, self._states, self._seed, offset, before=lane)
        return lane.take(offset)

    def order(self, seed: int) -> StreamOrder:
        self._seed = seed
        return StreamOrder(self._lanes)

    def keep_states(self, folder: Path) -> None:
        self._states = LaneStates(folder)

    def identity(self) -> list[Identity]:
        raise OnecurveError("stream: it cannot be prepared or packed: its samples have no end")

    def index_path(self) -> Path:
        raise OnecurveError("stream: it cannot be prepared or packed: its samples have no end")


class _Lane:
    """One lane, as far as it was read."""

    def __init__(
        self,
        number: int,
        open_lane: OpenLane,
        states: LaneStates,
        seed: int,
        offset: int,
        before: "_Lane | None",
    ) -> None:
        """`offset`: of the sample that will be read first. `before`: the lane as it was opened before."""
        self._number, self._open_lane, self._states, self._seed = number, open_lane, states, seed
        self._opened: Iterable[Any] = self._open_again(before._opened if before is not None else None)
        self.taken = 0
        if offset and hasattr(self._opened, "load_state_dict") and (found := states.latest(number, offset)):
            self.taken, state = found
            self._opened.load_state_dict(state)
        self._iterator: Iterator[Any] = iter(self._opened)

    def _open_again(self, used: object) -> Iterable[Any]:
        """Open the lane, with the same random numbers each time. `used`: what was returned before."""
        seed_all(mix(self._seed, 1, self._number, 0))
        opened = self._open_lane(self._number)
        if opened is used and (isinstance(opened, Iterator) or hasattr(opened, "load_state_dict")):
            raise OnecurveError(
                f"stream: open_lane({self._number}) returned an object that was read already; it must return a new "
                "one, which begins anew, each time"
            )
        return opened

    def take(self, offset: int) -> Any:
        """Return the sample at this offset, which is not before those that were taken."""
        if offset > self.taken:
            self._skip(offset)
        self._seed_all()
        value = self._next()
        if hasattr(self._opened, "state_dict"):
            self._states.offer(self._number, self.taken, self._opened.state_dict)
        return value

    def _skip(self, offset: int) -> None:
        begin, first, has_told = time.monotonic(), self.taken, False
        while self.taken < offset:
            self._seed_all()
            self._next()
            seconds = time.monotonic() - begin
            if seconds > _TELL_SECONDS and not has_told:
                has_told = True
                left = (offset - self.taken) * seconds / (self.taken - first)
                print(
                    f"stream: lane {self._number} is read again up to sample {offset:,}, from {first:,}, which takes "
                    f"about {left:.0f} s more; a lane with state_dict and load_state_dict would continue at once",
                    file=sys.stderr,
                    flush=True,
                )

    def _seed_all(self) -> None:
        """Seed the random generators as a reader does that needs the next sample."""
        seed_all(mix(self._seed, 0, self._number, self.taken))

    def _next(self) -> Any:
        try:
            value = next(self._iterator)
        except StopIteration:
            self._opened = self._open_again(self._opened)
            self._iterator = iter(self._opened)
            self._seed_all()
            try:
                value = next(self._iterator)
            except StopIteration:
                raise OnecurveError(f"stream: lane {self._number} has no samples") from None
        self.taken += 1
        return value
