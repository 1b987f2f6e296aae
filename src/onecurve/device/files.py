"""Atomic file writes: a file is written, synced to disk and then renamed, so that it appears complete or not at all."""

import os
from collections.abc import Iterable
from pathlib import Path

Bytes = bytes | memoryview


def cache_folder() -> Path:
    """The folder for what can be computed again. It may not exist, and may not be writable."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onecurve"


def write_new_file(path: Path, parts: Iterable[Bytes]) -> None:
    """Write a new file and sync it to disk; raise FileExistsError if the path exists."""
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
    """Write a file atomically; an existing file at the path stays until the new one is complete."""
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
    """Sync a folder to disk: only then does a new or renamed entry in it survive a crash."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
