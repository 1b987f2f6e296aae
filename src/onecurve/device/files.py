"""Files that appear on disk complete or not at all: written, synced, then renamed into place."""

import os
from collections.abc import Iterable
from pathlib import Path

Bytes = bytes | memoryview


def write_new_file(path: Path, parts: Iterable[Bytes]) -> None:
    """A new file, synced."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    try:
        for part in parts:
            rest = memoryview(part)
            while rest:
                rest = rest[os.write(handle, rest) :]
        os.fsync(handle)
    finally:
        os.close(handle)


def replace_file(path: Path, parts: Iterable[Bytes]) -> None:
    """A file under this name, whole; whatever had the name stays until then."""
    staging = path.with_name(f".{path.name}.part")
    staging.unlink(missing_ok=True)
    try:
        write_new_file(staging, parts)
        staging.replace(path)
    except BaseException:
        staging.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """A name is on the disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
