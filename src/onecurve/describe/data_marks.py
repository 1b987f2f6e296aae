"""Marks of a few samples of a job's data, by which ranks, hosts and starts of a run compare it.

A mark has hashes of a sample's input and target. Numbers that were computed may differ in their last digits between
kinds of processors, so they are compared by sums with a tolerance; everything else is compared exactly.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onecurve.describe.convert import from_json
from onecurve.describe.errors import OnecurveError

SAMPLES = "samples"
"""The field of a job's fingerprint that has the marks of its training data, as JSON."""
_INPUT_TOLERANCE, _TARGET_TOLERANCE = 1e-3, 1e-5


@dataclass(frozen=True)
class ValueMark:
    """The input or the target of a sample."""

    hash: str
    """Of all its bytes."""
    exact: str
    """Of its structure, and of the bytes of all but computed numbers."""
    sums: tuple[float, ...]
    """The norm of those numbers, and their sums with several weights; empty if there are none."""
    text: str
    """For a person."""


@dataclass(frozen=True)
class SampleMark:
    """One sample. A part that is another one each time it is read is None: it is not compared."""

    index: int
    input: ValueMark | None
    target: ValueMark | None


@dataclass(frozen=True)
class DataMarks:
    """Some samples of a dataset, at positions that follow from its length."""

    length: int
    samples: tuple[SampleMark, ...]
    hash_probe: int
    """What the process hashes a fixed text to; it shows that two processes have different hash seeds."""


def difference(name: str, one: DataMarks, other: DataMarks, sides: tuple[str, str]) -> str:
    """Describe how two processes differ in the data `name`, with the likely cause and the fix; empty if they do not.

    `sides`: where each is, such as `on rank 0`.
    """
    if one.length != other.length:
        return (
            f"{name}: it has {one.length:,} samples {sides[0]} and {other.length:,} {sides[1]}; some files may be "
            "missing, or the data has changed: use the same data"
        )
    others = {mark.index: mark for mark in other.samples}
    pairs = [(mark, others[mark.index]) for mark in one.samples if mark.index in others]
    differing = [pair for pair in pairs if not (_same_input(*pair) and _same_target(*pair))]
    if not differing:
        return ""
    first, second = differing[0]
    parts = [
        f"{part} {_text(mine)} {sides[0]}, {_text(theirs)} {sides[1]}"
        for part, same, mine, theirs in (
            ("input", _same_input, first.input, second.input),
            ("target", _same_target, first.target, second.target),
        )
        if not same(first, second)
    ]
    return (
        f"{name}: dataset[{first.index}] is not the same: {'; '.join(parts)} ({len(differing)} of {len(pairs)} samples "
        f"that were compared differ). {_cause(differing)}{_hash_seeds(one, other)}"
    )


def sample_difference(saved: str, now: str, sides: tuple[str, str]) -> str:
    """The same for the fields `SAMPLES` of two fingerprints. One that is missing, or of an older format, does not
    differ."""
    try:
        marks = [from_json(DataMarks, text.encode(), SAMPLES) for text in (saved, now)]
    except OnecurveError:
        return ""
    return difference("data", marks[0], marks[1], sides)


def _cause(differing: Sequence[tuple[SampleMark, SampleMark]]) -> str:
    if all(_same_input(*pair) and pair[0].input is not None for pair in differing):
        return (
            "Inputs are equal and targets are not: class numbers may come from the order of a set, or of os.listdir or "
            "glob; sort the names before they are numbered: sorted(names)"
        )
    return (
        "Files may be listed in another order (use sorted(os.listdir(…))), a split or shuffle may draw from a "
        "generator that is not seeded (use generator=torch.Generator().manual_seed(…), or seed=…), class numbers may "
        "come from a set (use sorted(…)), or the data has changed"
    )


def _hash_seeds(one: DataMarks, other: DataMarks) -> str:
    if one.hash_probe == other.hash_probe:
        return ""
    return ". The hash seeds differ, so sets of texts have different orders: set PYTHONHASHSEED=0 for all processes"


def _text(mark: ValueMark | None) -> str:
    return mark.text if mark is not None else "none"


def _same_input(one: SampleMark, other: SampleMark) -> bool:
    return _same(one.input, other.input, _INPUT_TOLERANCE)


def _same_target(one: SampleMark, other: SampleMark) -> bool:
    return _same(one.target, other.target, _TARGET_TOLERANCE)


def _same(one: ValueMark | None, other: ValueMark | None, tolerance: float) -> bool:
    if one is None or other is None or one.hash == other.hash:
        return True
    if one.exact != other.exact or not one.sums or len(one.sums) != len(other.sums):
        return False
    limit = tolerance * max(one.sums[0], other.sums[0])
    return all(abs(a - b) <= limit for a, b in zip(one.sums, other.sums, strict=True))
