"""Finds out whether samples of an evaluation are in the training data too.

All samples are read under one random seed, so that a sample that both have is also augmented equally. What is
augmented only in training is not found.
"""

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch.utils.data import Subset

from onecurve.data.loader import Reader
from onecurve.data.order import WHOLE, Sample
from onecurve.data.sample_marks import is_cheap_to_read
from onecurve.data.value_mark import value_hash
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import SKIPPED

_MOST = 256
"""Samples of each dataset that are read at most."""
_SECONDS = 0.1
"""No further sample is read after this time."""
_MOST_INDICES = 100_000
"""Subsets with more indices are compared by their samples only."""
_VERIFIED = 4
"""Indices that two subsets have in common of which the samples are read."""
_LEAST_MATCHES = 10
"""With fewer equal samples an estimate is too rough to be shown."""
_LEAST_SHARE = 0.05
_CHANCE = 10
"""Equal samples count if there are so many times fewer equal pairs within the training data itself."""
_SAME_SEED = Sample(0, WHOLE, 0)


def overlap_text(name: str, training: Reader, evaluation: Reader) -> str:
    """A warning if samples of the evaluation data `name` are in the training data; empty if none are found."""
    if not (is_cheap_to_read(training.dataset) and is_cheap_to_read(evaluation.dataset)):
        return ""
    found = _common_indices(training, evaluation) or _equal_samples(training, evaluation)
    if found is None:
        return ""
    return (
        f"{name}: {found}, so the evaluation says little about other data; "
        "split the data into parts without common samples, for example two parts of one random_split"
    )


def _common_indices(training: Reader, evaluation: Reader) -> str | None:
    """How many samples two subsets of equal datasets have in common, if reading some of them confirms it."""
    ours, theirs = _indices(training.dataset), _indices(evaluation.dataset)
    if ours is None or theirs is None or ours[:2] != theirs[:2]:
        return None
    places = {index: place for place, index in enumerate(ours[2])}
    common = [(places[index], place) for place, index in enumerate(theirs[2]) if index in places]
    if len(common) < max(1, _LEAST_SHARE * len(theirs[2])):
        return None
    for first, second in common[:: -(-len(common) // _VERIFIED)]:
        if _hash(training, first) != _hash(evaluation, second):
            return None
    return _exact_text(len(common), len(theirs[2]))


def _indices(dataset: Any) -> tuple[type, int, list[int]] | None:
    """The type and length of the dataset of which this is a subset, and its indices there; None if it is none."""
    if type(dataset) is not Subset or len(dataset) > _MOST_INDICES:
        return None
    indices = [int(index) for index in dataset.indices]
    base: Any = dataset.dataset
    while type(base) is Subset:
        indices, base = [int(base.indices[index]) for index in indices], base.dataset
    return (type(base), len(base), indices) if hasattr(base, "__len__") else None


@dataclass
class _Compared:
    """Hashes of the samples that were read, by index."""

    training: dict[int, str] = field(default_factory=dict)
    evaluation: dict[int, str] = field(default_factory=dict)

    @property
    def equal_pairs(self) -> int:
        """Pairs within the training data, which show how many samples are equal by chance."""
        return sum(count * (count - 1) // 2 for count in Counter(self.training.values()).values())

    def matches(self, drawn: set[int]) -> int:
        """Samples of the evaluation that are equal to one of these of the training data."""
        known = {digest for index, digest in self.training.items() if index in drawn}
        return sum(digest in known for digest in self.evaluation.values())

    def matches_in_place(self) -> tuple[int, int]:
        """Indices at which both have the same sample, and indices of which both were read."""
        both = self.training.keys() & self.evaluation.keys()
        return sum(self.training[index] == self.evaluation[index] for index in both), len(both)


def _equal_samples(training: Reader, evaluation: Reader) -> str | None:
    """How many samples are equal: all are compared if there are few, and otherwise some at random and in place."""
    sizes = len(training.dataset), len(evaluation.dataset)
    if not all(sizes):
        return None
    draws = np.random.default_rng(0)
    drawn = [draws.permutation(size)[:_MOST].tolist() if size <= 1 << 16 else _some(draws, size) for size in sizes]
    in_place = [index for index in drawn[1] if index < sizes[0]][: _MOST // 2] if sizes[0] > _MOST else []
    compared, deadline = _Compared(), time.perf_counter() + _SECONDS
    for from_training, index in _alternating([*in_place, *drawn[0]], drawn[1]):
        reader, hashes = (training, compared.training) if from_training else (evaluation, compared.evaluation)
        if index not in hashes and (digest := _hash(reader, index)):
            hashes[index] = digest
        if time.perf_counter() > deadline:
            break
    return _estimate(compared, {*drawn[0]}, *sizes)


def _some(draws: np.random.Generator, size: int) -> list[int]:
    return list(dict.fromkeys(draws.integers(0, size, _MOST).tolist()))


def _alternating(training: list[int], evaluation: list[int]) -> Iterator[tuple[bool, int]]:
    for number in range(max(len(training), len(evaluation))):
        if number < len(training):
            yield True, training[number]
        if number < len(evaluation):
            yield False, evaluation[number]


def _estimate(compared: _Compared, drawn: set[int], training: int, evaluation: int) -> str | None:
    read = len(compared.evaluation), len(compared.training.keys() & drawn)
    if not all(read):
        return None
    matches, limit = compared.matches(drawn), compared.equal_pairs * _CHANCE
    if read == (evaluation, training):  # all were compared
        is_sure = matches >= max(1, _LEAST_SHARE * evaluation) and matches >= limit
        return _exact_text(matches, evaluation) if is_sure else None
    share = min(1.0, matches * training / (read[0] * read[1])) if matches >= max(_LEAST_MATCHES, limit) else 0.0
    same, both = compared.matches_in_place()
    share = max(share, same / both if same >= max(_LEAST_MATCHES, limit) else 0.0)
    if share < _LEAST_SHARE:
        return None
    percent = max(5, 5 * round(20 * share))
    return f"about {percent} % of the evaluation samples are in the training data too (estimated from {read[0]})"


def _exact_text(count: int, size: int) -> str:
    return f"{count:,} of the {size:,} evaluation samples are in the training data too"


def _hash(reader: Reader, index: int) -> str:
    """The hash of a sample; empty if it is skipped or cannot be read."""
    with suppress(OnecurveError):
        sample = reader.sample(Sample(0, WHOLE, index), _SAME_SEED)
        return value_hash(sample) if sample is not SKIPPED else ""
    return ""
