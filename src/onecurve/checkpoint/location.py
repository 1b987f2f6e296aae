"""Locations of checkpoints: a folder, or a URL that fsspec knows."""

from pathlib import Path

from onecurve.checkpoint.fsspec_store import FsspecStore
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.store import Store

_FILE_SCHEME = "file://"


def open_store(location: str) -> Store:
    folder = local_folder(location)
    return LocalStore(folder) if folder is not None else FsspecStore(location)


def local_folder(location: str) -> Path | None:
    """Return the folder that a location names, or None if it is in another storage."""
    location = location.removeprefix(_FILE_SCHEME)
    return None if "://" in location else Path(location)
