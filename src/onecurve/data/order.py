"""The order of samples: position → (epoch, file, offset in the file), a pure function.

Two levels. Each epoch puts the files in a keyed order and cuts that into windows of `window` files; the samples of a
window are shuffled together by a keyed bijection. A reader thus holds at most one window of files open, and 10^13
samples cost no more memory than ten. A map-style dataset is one file.

Memory is one number per file. Positions run on through the epochs: a step may end one pass and begin the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onecurve.data.bijection import permute
from onecurve.describe.errors import OnecurveError
from onecurve.describe.seed import mix

Integers = NDArray[np.int64]


class Sample(NamedTuple):
    """Where a sample is found, and in which pass over the data it is asked for."""

    epoch: int
    file: int
    offset: int


@dataclass(frozen=True)
class Samples:
    """Several of them, kept as columns: they are made on every step and sent to the loader's processes."""

    epochs: Integers
    files: Integers
    offsets: Integers

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample, self.epochs.tolist(), self.files.tolist(), self.offsets.tolist())


class Order:
    """`Order([len(dataset)], seed=0).samples(0, 512)` are the first 512 samples."""

    def __init__(self, files: Sequence[int], seed: int, window: int = 1) -> None:
        """`files`: how many samples each has. `window`: how many files are shuffled together."""
        self._files = np.asarray(files, dtype=np.int64)
        self._seed = seed
        self._window = window
        self.size = int(self._files.sum())
        self._layouts: dict[int, _Layout] = {}
        if self.size < 1:
            raise OnecurveError("data: the dataset is empty (its length is 0)")
        if self._files.min() < 0 or window < 1:
            raise OnecurveError(f"data: a file of {self._files.min()} samples or a window of {window} files")

    def samples(self, begin: int, end: int) -> Samples:
        """The samples at positions begin … end-1."""
        found: list[tuple[Integers, Integers, Integers]] = []
        while begin < end or not found:
            epoch, offset = divmod(begin, self.size)
            layout = self._layout(epoch)
            window = int(np.searchsorted(layout.window_ends, offset, side="right"))
            window_begin = int(layout.window_ends[window - 1]) if window else 0
            window_end = int(layout.window_ends[window])
            taken = min(end - begin, window_end - offset)
            inside = np.arange(offset - window_begin, offset - window_begin + taken, dtype=np.uint64)
            key = mix(self._seed, epoch, window, 1)
            shuffled = permute(inside, window_end - window_begin, key).astype(np.int64)
            found.append((np.full(taken, epoch), *self._locate(layout, window, window_begin, shuffled)))
            begin += taken
        return Samples(*map(np.concatenate, zip(*found, strict=True))) if len(found) > 1 else Samples(*found[0])

    def _locate(
        self, layout: "_Layout", window: int, window_begin: int, shuffled: Integers
    ) -> tuple[Integers, Integers]:
        """The files of a window's samples, and where in them they are."""
        first = window * self._window
        ends = layout.file_ends[first : first + self._window] - window_begin
        which = np.searchsorted(ends, shuffled, side="right")
        begins = np.concatenate(([0], ends[:-1]))
        return layout.file_order[first + which], shuffled - begins[which]

    def _layout(self, epoch: int) -> "_Layout":
        if epoch not in self._layouts:
            count = len(self._files)
            order = permute(np.arange(count, dtype=np.uint64), count, mix(self._seed, epoch, 0)).astype(np.int64)
            ends = np.cumsum(self._files[order])
            last_of_window = np.minimum(np.arange(self._window, count + self._window, self._window), count) - 1
            # A step may straddle two epochs; older ones are not asked for again.
            self._layouts = {e: layout for e, layout in self._layouts.items() if abs(e - epoch) == 1}
            self._layouts[epoch] = _Layout(order, ends, ends[last_of_window])
        return self._layouts[epoch]


class _Layout(NamedTuple):
    """One epoch's files in their keyed order."""

    file_order: Integers
    file_ends: Integers
    """Where each file ends, counted along the epoch."""
    window_ends: Integers


def round_bounds(position: int, global_batch: int, rounds: int, number: int) -> tuple[int, int]:
    """The positions of round `number` of the step that begins at `position`."""
    return position + number * global_batch // rounds, position + (number + 1) * global_batch // rounds
