"""The nouns in a checkpoint's JSON files. Whatever is read is held against limits before it is believed."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from onecurve.checkpoint.chunk import ELEMENTS
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.safetensors_format import DTYPES
from onecurve.describe.plan import Plan

VERSION = 1
LARGEST_ROOT = 1 << 22
LARGEST_MANIFEST = 1 << 25
_LARGEST_HEADER = 1 << 25
_MOST_RANKS = 1 << 20
_LARGEST_WHOLE = 1 << 60
_MOST_DIMENSIONS = 64

ROOT = "root.json"
MODEL, OPTIMIZER = "model/", "optimizer/"


def manifest_file(rank: int) -> str:
    return f"rank-{rank}.json"


def data_file(rank: int) -> str:
    return f"rank-{rank}.safetensors"


@dataclass(frozen=True)
class Standing:
    """Where a training stands, besides its tensors."""

    step: int
    """Steps done."""
    position: int
    """Samples consumed."""
    loss: float | None = None
    """Of the last step; none where it was not finite."""
    loss_scale: float = 1.0
    good_steps: int = 0
    """Since the loss scale last changed."""
    watched: str = ""
    """What the best evaluation is the best in."""
    best_value: float | None = None
    best_step: int = -1
    waited: int = 0
    """Evaluations since the best one."""


@dataclass(frozen=True)
class Root:
    """Says that a checkpoint exists, and of what."""

    token: str
    ranks: int
    standing: Standing
    plan: Plan
    job: dict[str, str]
    """The job's fingerprint, field by field."""
    version: int = VERSION

    def __post_init__(self) -> None:
        _demand(re.fullmatch(r"[0-9a-f]{16}", self.token), f"token = {self.token[:40]!r}")
        _demand(1 <= self.ranks <= _MOST_RANKS, f"ranks = {self.ranks}")
        _demand(self.plan.mesh.size == self.ranks, f"ranks = {self.ranks}, but its plan has {self.plan.mesh.size}")
        numbers = (self.standing.step, self.standing.position)
        _demand(all(0 <= number <= _LARGEST_WHOLE for number in numbers), f"standing = {self.standing}")


@dataclass(frozen=True)
class Chunk:
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    begin: int
    """Its first byte in the data file."""
    hash: str

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True)
class StoredTensor:
    """What one rank wrote of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def __post_init__(self) -> None:
        _demand(self.dtype in DTYPES, f"dtype = {self.dtype[:40]!r}")
        dimensions = len(self.shape)
        _demand(dimensions <= _MOST_DIMENSIONS, f"{dimensions} dimensions")
        _demand(all(0 <= size <= _LARGEST_WHOLE for size in self.shape), f"shape = {self.shape}")
        for chunk in self.chunks:
            _demand(len(chunk.offsets) == len(chunk.sizes) == dimensions, f"a chunk of {len(chunk.sizes)} dimensions")
            sides = zip(chunk.offsets, chunk.sizes, self.shape, strict=True)
            _demand(all(o >= 0 and n >= 1 and o + n <= whole for o, n, whole in sides), f"a chunk at {chunk.offsets}")
            _demand(chunk.elements <= ELEMENTS, f"a chunk of {chunk.elements} elements")
            _demand(chunk.begin >= 0, f"a chunk that begins at byte {chunk.begin}")

    def nbytes(self, chunk: Chunk) -> int:
        return chunk.elements * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class ScalarState:
    """A value too small to be a chunk: a number of the optimizer's, or a tensor of one element."""

    kind: str
    """A type of elements, or `int`, `float`, `bool`."""
    text: str


@dataclass(frozen=True)
class Manifest:
    """What one rank wrote."""

    token: str
    rank: int
    size: int = 0
    """Bytes of the data file; 0 where there is none."""
    header: int = 0
    """Bytes before the data file's first element."""
    header_hash: str = ""
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    numbers: dict[str, dict[str, ScalarState]] = field(default_factory=dict)
    """By parameter: what its optimizer keeps of it besides tensors."""

    def __post_init__(self) -> None:
        _demand(0 <= self.header <= min(self.size, _LARGEST_HEADER), f"a header of {self.header} bytes")
        for stored in self.tensors.values():
            for chunk in stored.chunks:
                inside = self.header <= chunk.begin and chunk.begin + stored.nbytes(chunk) <= self.size
                _demand(inside, f"a chunk at byte {chunk.begin} of a file of {self.size}")


def _demand(holds: Any, what: str) -> None:
    if not holds:
        raise CorruptedError(what)
