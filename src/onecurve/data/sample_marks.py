"""Reads a few samples of a dataset, and marks them, so that other processes and later starts can compare theirs."""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from onecurve.data.loader import Reader
from onecurve.data.order import WHOLE, Sample
from onecurve.data.source import Source
from onecurve.data.value_mark import mark_value, value_hash
from onecurve.describe.data_marks import DataMarks, SampleMark
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import SKIPPED
from onecurve.job.dataset import Dataset

_LEAST, _MOST = 8, 16
"""Samples that are read in any case, and at most."""
_REPEATED = 4
"""Samples that are read twice, to find out whether they are the same each time."""
_SECONDS = 0.02
"""No further sample is read after this time."""
_PROBE = "onecurve"


def read_marks(reader: Reader, twice: bool, least: int = _LEAST, most: int = _MOST) -> DataMarks | None:
    """Read samples at positions that follow from the length of the data, under their random seeds.

    A sample that cannot be read is left out: the loader decides what becomes of it. `twice`: read them once more, to
    find samples that are other ones each time. None for a stream, and for files in remote storage.
    """
    if not is_cheap_to_read(reader.dataset):
        return None
    length = len(reader.dataset)
    marks = [
        SampleMark(index, mark_value(value), mark_value(target))
        for index, value, target in _read(reader, positions(length, most), least)
    ]
    if twice:
        marks = _without_unstable(reader, marks)
    return DataMarks(length, tuple(marks), hash(_PROBE))


def is_cheap_to_read(dataset: Dataset) -> bool:
    """False for a stream, and for files in remote storage, where the first sample of a file may cost a download."""
    return not isinstance(dataset, Source) or (dataset.has_end and not dataset.remote_files())


def _without_unstable(reader: Reader, marks: Sequence[SampleMark]) -> list[SampleMark]:
    """The marks without inputs, or without targets, if one of the first is another one when it is read again."""
    known = {mark.index: (mark.input, mark.target) for mark in marks[:_REPEATED]}
    is_same = [True, True]
    for index, *parts in _read(reader, [*known], least=1):
        for number, (mark, part) in enumerate(zip(known[index], parts, strict=True)):
            is_same[number] &= mark is not None and mark.hash == value_hash(part)
    return [
        SampleMark(mark.index, mark.input if is_same[0] else None, mark.target if is_same[1] else None)
        for mark in marks
    ]


def positions(length: int, most: int = _MOST) -> list[int]:
    """Up to `most` positions: the first, the last, and others that divide what is between, coarsely first."""
    chosen = dict.fromkeys([0, length - 1] if length else [])
    parts = 2
    while len(chosen) < min(most, length):
        for part in range(1, parts, 2):
            chosen.setdefault(part * (length - 1) // parts)
        parts *= 2
        if parts > 2 * length:
            chosen.update(dict.fromkeys(range(min(most, length))))
    return [*chosen][:most]


def parts_of(sample: Any) -> tuple[Any, Any]:
    """The input and the target of a sample, which a collate function of the user's may take in any form."""
    if isinstance(sample, tuple | list) and len(sample) == 2:
        return sample[0], sample[1]
    if isinstance(sample, dict):
        for name in ("labels", "label"):
            if name in sample:
                return {key: value for key, value in sample.items() if key != name}, sample[name]
    return sample, None


def unstable_text(name: str, marks: DataMarks) -> str:
    """A warning about samples that are other ones each time they are read; empty if there are none."""
    without = [part for part in ("input", "target") if any(getattr(mark, part) is None for mark in marks.samples)]
    if not without:
        return ""
    return (
        f"{name}: the {' and the '.join(without)} of dataset[{marks.samples[0].index}] is another one each time it is "
        "read, so no plan and no start trains the same, and the data is not compared; draw random numbers from random, "
        "numpy.random or torch, which are seeded before each sample, not from a generator of your own, os.urandom or "
        "the time"
    )


def _read(reader: Reader, indices: Sequence[int], least: int) -> Iterator[tuple[int, Any, Any]]:
    """Yield the index, input and target of samples while there is time, and of the first `least` in any case."""
    begin = time.perf_counter()
    for number, index in enumerate(indices):
        if number >= least and time.perf_counter() - begin > _SECONDS:
            break
        with suppress(OnecurveError):
            sample = reader.sample(Sample(0, WHOLE, index))
            yield index, *parts_of("skipped" if sample is SKIPPED else sample)
