"""Makes the index of data in files: in parallel, continued where it was broken off, and only for files that are new."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path

import numpy as np
import xxhash

from onecurve.describe.errors import OnecurveError
from onecurve.device.files import cache_folder
from onecurve.formats.file_format import BadFileError, FilePart
from onecurve.formats.index_file import DamagedIndexError, DataPiece, IndexFile, write_index
from onecurve.formats.index_journal import IndexJournal, ScannedFile
from onecurve.formats.known_formats import FORMATS, HEAD_BYTES, NAMES, recognized
from onecurve.formats.sample_folder import NAME as FOLDER
from onecurve.formats.sample_folder import FolderFile, FolderFiles, encode_files
from onecurve.formats.storage import DataFile, HashedStream, Storage

ALL_FILES = "**"
_FILES_AT_ONCE = 64
"""Small files are given to a process in groups of so many."""


@dataclass(frozen=True)
class DataLocation:
    """Data in files: a folder, and which of its files."""

    folder: str
    pattern: str = ALL_FILES
    """A glob: `*` stands for any text inside a name, `**` for any folders."""

    @staticmethod
    def at(location: str) -> "DataLocation":
        """`location`: a folder, a file, a glob such as `data/*.jsonl`, or a URL that fsspec knows."""
        parts = location.rstrip("/").split("/")
        fixed = next((at for at, part in enumerate(parts) if any(sign in part for sign in "*?[")), len(parts))
        folder = "/".join(parts[:fixed]) or ("/" if location.startswith("/") else ".")
        if fixed < len(parts):
            return DataLocation(folder, "/".join(parts[fixed:]))
        if "://" not in location and Path(location).is_file():
            return DataLocation("/".join(parts[:-1]) or ".", parts[-1])
        return DataLocation(folder)

    def files(self) -> list[DataFile]:
        """The files, in the order of their paths."""
        pattern = self.pattern.split("/")
        found = (file for file in Storage(self.folder).files() if _matches(file.path.split("/"), pattern))
        return sorted(found, key=lambda file: file.path)


@dataclass(frozen=True)
class Indexed:
    """What was done."""

    path: str
    format: str
    files: int
    samples: int
    bytes: int
    scanned: int
    """Files that were read; the others were known from before."""


def _matches(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """True if the names of a path match a glob, each its part; `**` takes any number of them."""
    if not pattern:
        return not names
    if pattern[0] == ALL_FILES:
        return len(pattern) == 1 or any(_matches(names[at:], pattern[1:]) for at in range(len(names)))
    return bool(names) and fnmatchcase(names[0], pattern[0]) and _matches(names[1:], pattern[1:])


def build_index(
    dataset: DataLocation,
    *,
    out: Path | None = None,
    processes: int | None = None,
    progress: Callable[[int, int], None] = lambda _, __: None,
) -> Indexed:
    """Write the index of a dataset. `out`: the file; None for one in its folder. `progress`: told bytes done, and all.

    A file that is known from an earlier index, and has the same size and time, is not read again.
    """
    files = dataset.files()
    if not files:
        raise OnecurveError(f"{dataset.folder}: there is no file {dataset.pattern!r} in it")
    storage = Storage(dataset.folder)
    is_published = out is None and not storage.is_local
    path = out or (_copy_path(dataset) if is_published else storage.local_path(_index_name(dataset)))
    path.parent.mkdir(parents=True, exist_ok=True)
    known = index_path(dataset) if is_published else path
    name = _format_of(storage, files)
    journal = IndexJournal(path.with_name(f"{path.name}.journal"), name)
    try:
        for scanned in _from_index(known or path, name):
            if not journal.has(scanned.path):  # which is newer
                journal.add(scanned)
        missing = [file for file in files if not journal.knows(file)]
        total = sum(file.size for file in files)
        done = total - sum(file.size for file in missing)
        progress(done, total)
        for scanned in _scan_all(dataset.folder, name, missing, processes):
            journal.add(scanned)
            done += scanned.size
            progress(done, total)
        pieces = _pieces(name, (journal.scanned(file.path) for file in files))
        write_index(path, name, {"pattern": dataset.pattern}, pieces)
    finally:
        journal.close()
    journal.remove()
    samples = int(IndexFile(path).samples.sum())
    if is_published:
        storage.upload(path, _index_name(dataset))
    where = f"{dataset.folder.rstrip('/')}/{_index_name(dataset)}" if is_published else str(path)
    return Indexed(path=where, format=name, files=len(files), samples=samples, bytes=total, scanned=len(missing))


def index_path(dataset: DataLocation) -> Path | None:
    """The index that is stored in the folder of the data, or a copy on this host of the one beside remote data; None if
    there is none."""
    storage = Storage(dataset.folder)
    if storage.is_local:
        path = storage.local_path(_index_name(dataset))
        return path if path.exists() else None
    with ProcessPoolExecutor(1, multiprocessing.get_context("fork")) as pool:
        # Connections have threads, and this process may be one from which loaders are forked.
        return pool.submit(_copied_index, dataset).result()


def _copied_index(dataset: DataLocation) -> Path | None:
    storage = Storage(dataset.folder)
    stored = storage.stored(_index_name(dataset))
    if stored is None:
        return None
    path = _copy_path(dataset).with_suffix(f".{stored.stamp:x}.index")
    if not path.exists():
        storage.download(stored, path)
    return path


def _index_name(dataset: DataLocation) -> str:
    """Each glob has an index of its own."""
    of_glob = "" if dataset.pattern == ALL_FILES else f"-{xxhash.xxh3_64_hexdigest(dataset.pattern.encode())[:8]}"
    return f"_onecurve{of_glob}.index"


def _copy_path(dataset: DataLocation) -> Path:
    """Where the index of remote data is on this host, while it is made."""
    url = f"{dataset.folder.rstrip('/')}/{_index_name(dataset)}"
    return cache_folder() / "indices" / f"{xxhash.xxh3_64_hexdigest(url.encode())}.index"


def _format_of(storage: Storage, files: Sequence[DataFile]) -> str:
    """The format that all files have, as the first one shows it."""
    with storage.open(files[0].path) as file:
        found = recognized(files[0].path, file.read(HEAD_BYTES))
    if found is None:
        raise OnecurveError(
            f"{storage.location}/{files[0].path}: its format is not known; it can be {', '.join(NAMES)}. Move away "
            "what is no data, or give a glob such as 'data/*.jsonl'"
        )
    return found


def _from_index(path: Path, format: str) -> Iterator[ScannedFile]:
    """What an earlier index says about each file."""
    try:
        index = IndexFile(path)
    except DamagedIndexError:  # or there is none: all files are read
        return
    if index.format != format:
        return
    parts: list[tuple[int, bytes]] = []
    for number in range(len(index)):
        piece = index.piece(number)
        if format == FOLDER:
            yield from _files_of(piece)
            continue
        parts.append((piece.samples, np.asarray(piece.details, np.uint64).tobytes()))
        if number + 1 == len(index) or index.path(number + 1) != piece.path:
            yield ScannedFile(piece.path, piece.size, piece.stamp, piece.hash, parts)
            parts = []


def _files_of(piece: DataPiece) -> Iterator[ScannedFile]:
    files = FolderFiles(np.asarray(piece.details, np.uint64), piece.samples)
    for offset in range(piece.samples):
        file = files.file(offset)
        yield ScannedFile(f"{piece.path}/{file.name}", file.size, file.stamp, file.hash, [(1, b"")])


def _scan_all(folder: str, format: str, files: Sequence[DataFile], processes: int | None) -> Iterator[ScannedFile]:
    """Scan files, several at the same time; in their order."""
    count = processes or len(os.sched_getaffinity(0))
    scan = partial(_scan, folder, format)
    if count == 1 or len(files) < 2:
        yield from map(scan, files)
        return
    chunk = max(1, min(_FILES_AT_ONCE, len(files) // (4 * count)))
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(scan, files, chunksize=chunk)


def _scan(folder: str, format: str, file: DataFile) -> ScannedFile:
    storage = Storage(folder)
    with storage.open(file.path) as opened:
        head = opened.read(HEAD_BYTES)
        opened.seek(0)
        found = recognized(file.path, head)
        if found != format and not (format in FORMATS and FORMATS[format].recognizes(file.path, head)):
            what = "of an unknown format" if found is None else f"a file of {found}"
            raise OnecurveError(
                f"{folder}/{file.path}: it is {what}, but the others are of {format}; move it away, or give a glob"
            )
        stream = HashedStream(opened)
        try:
            parts = FORMATS[format].scan(stream, file.size) if format in FORMATS else [FilePart(1)]
        except BadFileError as error:
            raise BadFileError(f"{folder}/{file.path}: {error}") from None
        encoded = [(part.samples, np.asarray(part.details, np.uint64).tobytes()) for part in parts]
        return ScannedFile(file.path, file.size, file.stamp, stream.finish(), encoded)


def _pieces(format: str, files: Iterable[ScannedFile]) -> Iterator[DataPiece]:
    if format == FOLDER:
        yield from _classes(files)
        return
    for file in files:
        for number, (samples, details) in enumerate(file.parts):
            yield DataPiece(
                path=file.path,
                size=file.size,
                stamp=file.stamp,
                hash=file.hash,
                samples=samples,
                part=number,
                details=np.frombuffer(details, np.uint64),
            )


def _classes(files: Iterable[ScannedFile]) -> Iterator[DataPiece]:
    """One piece for each class, with its files."""
    classes: dict[str, list[FolderFile]] = {}
    for file in files:
        folder, slash, name = file.path.partition("/")
        if not slash:
            raise OnecurveError(f"{file.path}: it is in no class; put each class into a folder of its own")
        classes.setdefault(folder, []).append(FolderFile(name, file.size, file.stamp, file.hash))
    for folder in sorted(classes):
        members = classes[folder]
        size = sum(member.size for member in members)
        yield DataPiece(path=folder, size=size, stamp=0, hash=0, samples=len(members), details=encode_files(members))
