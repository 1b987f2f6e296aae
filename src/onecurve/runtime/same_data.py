"""Makes sure that all ranks of a run have the same data."""

import platform
from collections.abc import Mapping
from dataclasses import dataclass

import torch.distributed as dist

from onecurve.data.loader import Reader
from onecurve.data.overlap import overlap_text
from onecurve.data.sample_marks import read_marks, unstable_text
from onecurve.data.training_data import TrainingData
from onecurve.describe.convert import from_json, to_json
from onecurve.describe.data_marks import SAMPLES, DataMarks, difference
from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import broadcast_first_text
from onecurve.device.world import World

Marks = Mapping[str, DataMarks]
"""Marks of some samples, by the name of the data: `data`, `evaluate.data`, `evaluate.test`."""
_EVALUATION_SAMPLES = 2, 4
"""Of each dataset of evaluations, samples that are compared in any case, and at most."""


@dataclass(frozen=True)
class _MarksOfRank:
    host: str
    marks: dict[str, DataMarks]


def marks_of(training: Reader, evaluation: Mapping[str, Reader], twice: bool) -> dict[str, DataMarks]:
    """Read and mark some samples of all data. `twice`: find out too whether they are the same each time."""
    found = {"data": read_marks(training, twice)}
    for name, reader in evaluation.items():
        found[f"evaluate.{name}"] = read_marks(reader, twice, *_EVALUATION_SAMPLES)
    return {name: marks for name, marks in found.items() if marks is not None}


def agree_on_data(own: Marks, world: World) -> dict[str, DataMarks]:
    """Raise OnecurveError on all ranks if one has other data than the first; return the marks of the first."""
    if world.size == 1:
        return dict(own)
    group = dist.group.WORLD
    text = to_json(_MarksOfRank(platform.node(), dict(own))) if world.rank == 0 else ""
    first = from_json(_MarksOfRank, broadcast_first_text(group, text).encode(), "marks of the first rank")
    sides = f"on rank 0 ({first.host})", f"on rank {world.rank} ({platform.node()})"
    found = [difference(name, first.marks[name], own[name], sides) for name in own if name in first.marks]
    refusal = broadcast_first_text(group, next(filter(None, found), ""))
    if refusal:
        raise OnecurveError(f"{refusal}. All ranks of a run must read the same data")
    return first.marks


def samples_field(marks: Marks) -> dict[str, str]:
    """What the fingerprint of a job says about the samples of its training data."""
    return {SAMPLES: to_json(marks["data"])} if "data" in marks else {}


def samples_of(data: TrainingData) -> dict[str, str]:
    """The same for data of which nothing was read yet."""
    return samples_field(marks_of(data.reader, {}, twice=True))


def overlap_texts(training: Reader, evaluation: Mapping[str, Reader]) -> str:
    """A warning about evaluation data that is in the training data too; empty if nothing is found."""
    texts = [overlap_text(f"evaluate.{name}", training, reader) for name, reader in evaluation.items()]
    return "; ".join(filter(None, texts))


def unstable_texts(marks: Marks) -> str:
    """A warning about data whose samples are other ones each time they are read; empty if there is none."""
    return "; ".join(filter(None, [unstable_text(name, each) for name, each in marks.items()]))
