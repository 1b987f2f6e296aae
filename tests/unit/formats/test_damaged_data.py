"""Damaged and hostile files: each ends in an error that names it, soon, and without much memory or a write."""

import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import onecurve as oc
from onecurve.data.source import Source
from onecurve.describe.errors import OnecurveError
from onecurve.formats.index_file import IndexFile, refuse_escaping
from sample_files import masked_crc32c, write_indexed

SOURCES: dict[str, Callable[[str], Source]] = {
    "jsonl": oc.data.jsonl,
    "gzip": oc.data.jsonl,
    "zstandard": oc.data.jsonl,
    "tar": oc.data.tar,
    "parquet": oc.data.parquet,
    "tfrecord": oc.data.tfrecord,
    "tokens": lambda path: oc.data.tokens(path, length=2),
    "folder": oc.data.folder,
}
MOST_SECONDS, MOST_BYTES = 1.0, 256 << 20


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_indexed(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("count", [40, pytest.param(700, marks=pytest.mark.slow)])
def test_mutated_indices(kind: str, count: int, folder: Path, tmp_path: Path) -> None:
    """With 700 of each of eight kinds: 5,600."""
    index = (folder / kind / "_onecurve.index").read_bytes()
    target = tmp_path / "mutated.index"
    for mutated in mutations(index, count, seed=kind):
        target.write_bytes(mutated)
        bounded(lambda: read_all(oc_source(kind, folder, target)))
    assert {path.name for path in tmp_path.iterdir()} == {"mutated.index"}


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("count", [15, pytest.param(300, marks=pytest.mark.slow)])
def test_mutated_files(kind: str, count: int, folder: Path, tmp_path: Path) -> None:
    """First with an index that does not know of it, then indexed anew."""
    first = sorted(path for path in (folder / kind).rglob("*") if path.is_file() and not path.name.startswith("_"))[0]
    target = tmp_path / "data" / first.relative_to(folder / kind)
    target.parent.mkdir(parents=True)
    for mutated in mutations(first.read_bytes(), count, seed=kind):
        target.write_bytes(mutated)
        bounded(lambda: read_all(oc_source(kind, tmp_path / "data", folder / kind / "_onecurve.index", whole=False)))
        bounded(lambda: oc.index(str(tmp_path / "data"), processes=1))
    assert {path.name for path in tmp_path.iterdir()} == {"data"}


def oc_source(kind: str, folder: Path, index: Path, whole: bool = True) -> Source:
    path = str(folder / kind) if whole else str(folder)
    if kind == "tokens":
        return oc.data.tokens(path, length=2, index=str(index))
    return SOURCES[kind](path, index=str(index))  # type: ignore[call-arg]


def read_all(source: Source) -> None:
    for index in range(min(len(source), 40)):
        source[index]


def mutations(data: bytes, count: int, seed: str) -> Iterator[bytes]:
    draw = random.Random(seed)
    for _ in range(count):
        found = bytearray(data)
        for _ in range(draw.randint(1, 4)):
            at = draw.randrange(len(found))
            kind = draw.randrange(5)
            if kind == 0:
                found[at] ^= 1 << draw.randrange(8)
            elif kind == 1:
                found[at : at + 8] = struct.pack("<Q", draw.choice([0, 1, 2**31, 2**40, 2**62, 2**64 - 1]))
            elif kind == 2:
                del found[at : at + draw.randint(1, 100)]
            elif kind == 3:
                found[at:at] = draw.randbytes(draw.randint(1, 100))
            else:
                del found[at:]
            found = found or bytearray(b"\0")
        yield bytes(found)


def bounded(work: Callable[[], object]) -> None:
    """Do something that may raise an OnecurveError, and nothing else, soon and without much memory."""
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with suppress(OnecurveError):
        work()
    assert time.perf_counter() - begin < MOST_SECONDS
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < MOST_BYTES


@pytest.mark.parametrize(
    "path", ["../a", "/etc/passwd", "a/../../b", "", "a//b", "s3://b/a", "a\\b", "a\0b", "./a", "a/."]
)
def test_a_path_cannot_leave_its_folder(path: str) -> None:
    with pytest.raises(OnecurveError, match="leaves the folder of the data, and is refused"):
        refuse_escaping(path, "index")


def test_a_record_of_absurd_length_takes_no_memory(tmp_path: Path) -> None:
    length = struct.pack("<Q", 2**40)
    (tmp_path / "a.tfrecord").write_bytes(length + struct.pack("<I", masked_crc32c(length)) + b"x" * 100)
    with pytest.raises(OnecurveError, match="record 0, at byte 0, says that it has 1,099,511,627,776 bytes"):
        oc.index(str(tmp_path))


def test_something_else_is_no_index(tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"x" * 1000)
    with pytest.raises(OnecurveError, match="it is not an index of onecurve, or one of another version"):
        IndexFile(tmp_path / "index")
