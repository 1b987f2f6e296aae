"""The content of a checkpoint's JSON files. Everything that is read is checked against limits before it is used."""

import math
import re
from dataclasses import dataclass, field
from typing import Any

from onecurve.checkpoint.chunk import MAX_CHUNK_ELEMENTS
from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.checkpoint.safetensors_format import DTYPES
from onecurve.describe.plan import Plan

VERSION = 4
"""Version 2 counted the step of the best evaluation in `train_state` from 0. Version 3 had all rows of embedding tables
in every checkpoint."""
OLDEST_VERSION = 2
MAX_ROOT_BYTES = 1 << 22
MAX_MANIFEST_BYTES = 1 << 25
_MAX_HEADER_BYTES = 1 << 25
_MAX_RANKS = 1 << 20
_MAX_SIZE = 1 << 60
_MAX_DIMENSIONS = 64

MODEL, OPTIMIZER, TABLES = "model/", "optimizer/", "tables/"


def manifest_file(rank: int) -> str:
    return f"rank-{rank}.json"


def data_file(rank: int) -> str:
    return f"rank-{rank}.safetensors"


def rank_of(file: str) -> int:
    """Return the rank whose manifest or data file this is."""
    return int(file.removeprefix("rank-").partition(".")[0])


@dataclass(frozen=True)
class SavePoint:
    """Where a training stands when it is saved, as far as this package has to know."""

    step: int
    """Steps done."""
    train_state: dict[str, Any] = field(default_factory=dict)
    """Plain data for train/, which alone reads it back."""
    best_step: int | None = None
    """Steps that were done at the best evaluation; None if there was no evaluation yet."""
    rows_base: str = ""
    """Name of the checkpoint that has the rows of embedding tables which this one leaves out, because they have not
    changed since; empty if this one has all rows."""


@dataclass(frozen=True)
class Root:
    """The root manifest: a checkpoint exists if and only if this file does."""

    token: str
    """Random text that every file of one checkpoint carries."""
    ranks: int
    point: SavePoint
    plan: Plan
    job: dict[str, str]
    """The job's fingerprint, field by field."""
    version: int = VERSION

    def __post_init__(self) -> None:
        _require(re.fullmatch(r"[0-9a-f]{16}", self.token), f"token = {self.token[:40]!r}")
        _require(1 <= self.ranks <= _MAX_RANKS, f"ranks = {self.ranks}")
        _require(self.plan.mesh.size == self.ranks, f"ranks = {self.ranks}, but its plan has {self.plan.mesh.size}")
        _require(0 <= self.point.step <= _MAX_SIZE, f"step = {self.point.step}")


@dataclass(frozen=True)
class Chunk:
    """A box of one tensor's elements, stored contiguously in a data file."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    begin: int
    """Offset of its first byte in the data file."""
    hash: str

    @property
    def elements(self) -> int:
        return math.prod(self.sizes)


@dataclass(frozen=True)
class StoredTensor:
    """The chunks of one tensor that one rank wrote."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]

    def __post_init__(self) -> None:
        _require(self.dtype in DTYPES, f"dtype = {self.dtype[:40]!r}")
        dimensions = len(self.shape)
        _require(dimensions <= _MAX_DIMENSIONS, f"{dimensions} dimensions")
        _require(all(0 <= size <= _MAX_SIZE for size in self.shape), f"shape = {self.shape}")
        for chunk in self.chunks:
            _require(len(chunk.offsets) == len(chunk.sizes) == dimensions, f"a chunk of {len(chunk.sizes)} dimensions")
            sides = zip(chunk.offsets, chunk.sizes, self.shape, strict=True)
            _require(all(o >= 0 and n >= 1 and o + n <= whole for o, n, whole in sides), f"a chunk at {chunk.offsets}")
            _require(chunk.elements <= MAX_CHUNK_ELEMENTS, f"a chunk of {chunk.elements} elements")
            _require(chunk.begin >= 0, f"a chunk that begins at byte {chunk.begin}")

    def nbytes(self, chunk: Chunk) -> int:
        return chunk.elements * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class ScalarState:
    """An optimizer state value that is too small for a chunk: a number, or a tensor without dimensions."""

    kind: str
    """`int`, `float`, `bool`, or the safetensors name of a dtype."""
    text: str


@dataclass(frozen=True)
class Manifest:
    """The manifest of one rank: what is in its data file."""

    token: str
    rank: int
    size: int = 0
    """Bytes of the data file; 0 if there is none."""
    header: int = 0
    """Bytes of the data file before its first element."""
    header_hash: str = ""
    tensors: dict[str, StoredTensor] = field(default_factory=dict)
    numbers: dict[str, dict[str, ScalarState]] = field(default_factory=dict)
    """Scalar optimizer state by parameter and key."""

    def __post_init__(self) -> None:
        _require(0 <= self.header <= min(self.size, _MAX_HEADER_BYTES), f"a header of {self.header} bytes")
        for stored in self.tensors.values():
            for chunk in stored.chunks:
                inside = self.header <= chunk.begin and chunk.begin + stored.nbytes(chunk) <= self.size
                _require(inside, f"a chunk at byte {chunk.begin} of a file of {self.size}")


def _require(condition: Any, what: str) -> None:
    if not condition:
        raise CorruptedError(what)
