"""Where checkpoints lie: a folder of this host's file system, or any store that fsspec knows."""

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.device.files import Bytes

_NAME = re.compile(r"step-(\d{8,18})-([0-9a-f]{16})")


class StoredFile(Protocol):
    """A large file, to be read from any place."""

    @property
    def size(self) -> int: ...

    def read(self, begin: int, size: int) -> bytearray:
        """Raises DamagedError where the file ends before."""

    def close(self) -> None: ...


class Store(Protocol):
    """A checkpoint has a name and is a few files per rank. It exists from `commit` to `retire`."""

    @property
    def where(self) -> str:
        """For a person."""

    def begin(self, name: str) -> None:
        """Make room for a checkpoint that does not exist yet. By one rank; the others must see it."""

    def write(self, name: str, file: str, parts: Iterable[Bytes]) -> None:
        """A file of a checkpoint that does not exist yet; safe from a power cut when this returns."""

    def commit(self, name: str, root: bytes) -> None:
        """The root manifest: from here on the checkpoint exists. By one rank, when all have written."""

    def abandon(self, name: str) -> None:
        """Give up what was begun."""

    def names(self) -> list[str]:
        """Of the checkpoints that exist."""

    def read(self, name: str, file: str, limit: int) -> bytes:
        """A small file whole."""

    def open(self, name: str, file: str) -> StoredFile: ...

    def retire(self, name: str) -> None:
        """The checkpoint no longer exists. By one rank, before its files are erased."""

    def erase(self, name: str, files: Sequence[str]) -> None:
        """Files of what was retired; the ranks share them."""

    def clear(self) -> None:
        """Whatever earlier lives began, retired and left behind."""


def name_of(step: int, token: str) -> str:
    """No two saves have one name, so nothing is ever written over."""
    return f"step-{step:08d}-{token}"


def step_of(name: str) -> int:
    match = _NAME.fullmatch(name)
    if match is None:
        raise CorruptedError(f"{name[:80]!r}: not the name of a checkpoint")
    return int(match[1])


def in_order(names: Iterable[str]) -> list[str]:
    """Checkpoints' names, the oldest first; anything else is left out."""
    return sorted((name for name in names if _NAME.fullmatch(name)), key=lambda name: (step_of(name), name))


def empty(store: Store) -> None:
    """No checkpoint is left."""
    for name in store.names():
        store.retire(name)
    store.clear()
