"""The sample order: a pure function from a position to (epoch, file, offset in the file).

The shuffle has two levels. Each epoch puts the files into a keyed pseudorandom order and splits that into windows of
`window` files; the samples of one window are shuffled together by a keyed permutation. A reader therefore has at most
one window of files open. A map-style dataset counts as one file.

Memory is one number per file, whatever the number of samples. Positions continue through the epochs: a step may contain
the end of one pass over the data and the beginning of the next.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onecurve.data.bijection import permute
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.describe.seed import mix

Integers = NDArray[np.int64]


class Sample(NamedTuple):
    """The location of a sample, and the epoch in which it is read."""

    epoch: int
    file: int
    """Which piece of the data; `WHOLE` if `offset` counts the samples of all of it."""
    offset: int


WHOLE = -1


@dataclass(frozen=True)
class Samples:
    """Several samples, stored as columns: this is fast to compute for every step and to send to worker processes."""

    epochs: Integers
    files: Integers
    offsets: Integers

    def __len__(self) -> int:
        return len(self.offsets)

    def __iter__(self) -> Iterator[Sample]:
        return map(Sample, self.epochs.tolist(), self.files.tolist(), self.offsets.tolist())


class Order:
    """The order of all samples: `Order([len(dataset)], seed=0).samples(0, 512)` returns the first 512."""

    def __init__(self, files: Sequence[int], seed: int, window: int = 1) -> None:
        """`files`: number of samples in each file. `window`: number of files that are shuffled together."""
        self._files = np.asarray(files, dtype=np.int64)
        self._seed = seed
        self._window = window
        self.size = int(self._files.sum())
        self.text = f"{self.size:,} samples"
        self._epoch_layouts: dict[int, _EpochLayout] = {}
        if self.size < 1:
            raise OnecurveError("data: the dataset is empty; its length must be at least 1, got 0")
        if self._files.min() < 0 or window < 1:
            raise OnecurveError(
                "data: a file must have at least 0 samples and a window at least 1 file, got a file of "
                f"{self._files.min()} samples and a window of {window} files"
            )

    def samples(self, begin: int, end: int) -> Samples:
        """The samples at positions begin … end-1."""
        pieces: list[tuple[Integers, Integers, Integers]] = []
        while begin < end or not pieces:
            epoch, offset = divmod(begin, self.size)
            layout = self._layout(epoch)
            window = int(np.searchsorted(layout.window_ends, offset, side="right"))
            window_begin = int(layout.window_ends[window - 1]) if window else 0
            window_end = int(layout.window_ends[window])
            length = min(end - begin, window_end - offset)
            in_window = np.arange(offset - window_begin, offset - window_begin + length, dtype=np.uint64)
            key = mix(self._seed, epoch, window, 1)
            shuffled = permute(in_window, window_end - window_begin, key).astype(np.int64)
            pieces.append((np.full(length, epoch), *self._locate(layout, window, window_begin, shuffled)))
            begin += length
        return Samples(*map(np.concatenate, zip(*pieces, strict=True))) if len(pieces) > 1 else Samples(*pieces[0])

    def share(self, plan: Plan, data_rank: int, position: int, round_number: int) -> Samples:
        """The samples that a data-parallel rank reads in one round of the step that begins at `position`."""
        return self.samples(*share_bounds(plan, data_rank, position, round_number))

    def next_uses(self, position: int) -> Integers:
        """For each file, the first position from this one on at which its window is read."""
        epoch, offset = divmod(position, self.size)
        begins, ends = self._window_bounds(epoch)
        later, _ = self._window_bounds(epoch + 1)
        uses = np.where(ends > offset, begins + epoch * self.size, later + (epoch + 1) * self.size)
        return np.maximum(uses, position)

    def _window_bounds(self, epoch: int) -> tuple[Integers, Integers]:
        """Of each file, where its window begins and ends in an epoch."""
        layout = self._layout(epoch)
        windows = np.arange(len(self._files)) // self._window
        begins, ends = np.empty_like(self._files), np.empty_like(self._files)
        begins[layout.file_order] = np.concatenate(([0], layout.window_ends))[windows]
        ends[layout.file_order] = layout.window_ends[windows]
        return begins, ends

    def _locate(
        self, layout: "_EpochLayout", window: int, window_begin: int, shuffled: Integers
    ) -> tuple[Integers, Integers]:
        """The file of each shuffled sample of a window, and the sample's offset in that file."""
        first_file = window * self._window
        ends = layout.file_ends[first_file : first_file + self._window] - window_begin
        file_in_window = np.searchsorted(ends, shuffled, side="right")
        begins = np.concatenate(([0], ends[:-1]))
        return layout.file_order[first_file + file_in_window], shuffled - begins[file_in_window]

    def _layout(self, epoch: int) -> "_EpochLayout":
        if epoch not in self._epoch_layouts:
            count = len(self._files)
            order = permute(np.arange(count, dtype=np.uint64), count, mix(self._seed, epoch, 0)).astype(np.int64)
            ends = np.cumsum(self._files[order])
            last_file_of_window = np.minimum(np.arange(self._window, count + self._window, self._window), count) - 1
            # A step may contain samples of two epochs; layouts of older epochs are not needed again.
            self._epoch_layouts = {e: layout for e, layout in self._epoch_layouts.items() if abs(e - epoch) == 1}
            self._epoch_layouts[epoch] = _EpochLayout(order, ends, ends[last_file_of_window])
        return self._epoch_layouts[epoch]


class _EpochLayout(NamedTuple):
    """The files of one epoch in their shuffled order."""

    file_order: Integers
    file_ends: Integers
    """End position of each file, counted in samples from the start of the epoch."""
    window_ends: Integers
    """End position of each window, counted in the same way."""


def round_bounds(position: int, global_batch: int, rounds: int, round_number: int) -> tuple[int, int]:
    """The positions [begin, end) of one round of the step that begins at `position`."""
    return position + round_number * global_batch // rounds, position + (round_number + 1) * global_batch // rounds


def share_bounds(plan: Plan, data_rank: int, position: int, round_number: int) -> tuple[int, int]:
    """The positions [begin, end) that a data-parallel rank reads in one round of the step that begins at `position`."""
    begin, _ = round_bounds(position, plan.global_batch, plan.rounds, round_number)
    first, last = plan.share(data_rank)
    return begin + first, begin + last
