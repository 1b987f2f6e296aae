"""Works on all pieces of a source once, in several processes, and shows how far it is."""

import fcntl
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from onecurve.data.pieces import Pieces
from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.seed import mix
from onecurve.device.parent_process import die_with_parent
from onecurve.device.rng import preserve_rng_state, seed_all

Result = TypeVar("Result")
_LINE_SECONDS = 10.0
"""Between two lines about the progress, if it is not shown on a terminal."""
_REDRAW_SECONDS = 0.2


def all_samples(source: Pieces, piece: int) -> Iterator[Any]:
    """Read the samples of a piece one after the other; each is a value or `SKIPPED`. A function that draws random
    numbers draws the same ones whoever reads."""
    with preserve_rng_state():
        for offset in range(int(source.piece_sizes[piece])):
            seed_all(mix(0, 0, piece, offset))
            try:
                yield source.read(piece, offset)
            except OnecurveError:
                raise
            except Exception as error:
                what = f"sample {offset} of piece {piece}"
                raise UserCodeError(f"data: {what} raised {type(error).__name__}: {error}") from error


def work_on_pieces(
    source: Pieces, work: Callable[[Pieces, int], Result], pieces: Sequence[int], label: str
) -> Iterator[tuple[int, Result]]:
    """Call `work(source, piece)` for each piece, in as many processes as there are cores; yield the results in their
    order. The processes are forked, so the source may have functions that cannot be sent to one."""
    sizes = source.piece_sizes
    total = int(sizes.sum())
    progress = _ProgressLine(label, total, total - int(sizes[list(pieces)].sum()))
    count = min(len(os.sched_getaffinity(0)), len(pieces))
    if count < 2:
        for piece in pieces:
            yield piece, work(source, piece)
            progress.advance(int(sizes[piece]))
    else:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(count, context, _adopt, (source, work, os.getpid())) as pool:
            for piece, result in zip(pieces, pool.map(_work, pieces), strict=True):
                yield piece, result
                progress.advance(int(sizes[piece]))
    progress.end()


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Let one process after the other do this; the file stays. `what`: what the others wait for."""
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise OnecurveError(f"{path.parent}: {what} cannot be written there ({error.strerror})") from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{path.parent}: another process makes {what}; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


_adopted: list[Any] = []


def _adopt(source: Pieces, work: Callable[[Pieces, int], Any], parent: int) -> None:
    die_with_parent(parent)  # it has the lock open too: nobody could continue if it stayed
    torch.set_num_threads(1)  # threads of the parent are not there after a fork
    _adopted[:] = [source, work]


def _work(piece: int) -> Any:
    source, work = _adopted
    return work(source, piece)


class _ProgressLine:
    """A line on a terminal that is written again and again; elsewhere one every few seconds."""

    def __init__(self, label: str, total: int, done: int) -> None:
        self._label, self._total, self._done, self._first = label, total, done, done
        self._begin = self._shown = time.monotonic()
        self._on_terminal = sys.stderr.isatty()

    def advance(self, samples: int) -> None:
        self._done += samples
        now = time.monotonic()
        if now - self._shown >= (_REDRAW_SECONDS if self._on_terminal else _LINE_SECONDS):
            self._shown = now
            rate = (self._done - self._first) / (now - self._begin)
            left = (self._total - self._done) / max(rate, 1e-9)
            text = f"{self._label}: {self._done:,} of {self._total:,} samples, about {left:.0f} s left"
            print(f"\r\x1b[K{text}" if self._on_terminal else text, end="" if self._on_terminal else "\n",
                  file=sys.stderr, flush=True)  # fmt: skip

    def end(self) -> None:
        if self._on_terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
