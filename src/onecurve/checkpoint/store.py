"""The interface of a store of checkpoints: a folder of a file system, or any storage that fsspec supports."""

import re
from collections.abc import Iterable, Sequence
from typing import Protocol

from onecurve.checkpoint.hashed_json import CorruptedError
from onecurve.device.files import Bytes

ROOT = "root.json"
"""The file that makes a checkpoint complete; it is written last."""

_NAME = re.compile(r"step-(\d{8,18})-([0-9a-f]{16})")


class StoredFile(Protocol):
    """A large file of a checkpoint, open for random reads."""

    @property
    def size(self) -> int: ...

    def read(self, begin: int, size: int) -> bytearray:
        """Return `size` bytes from byte `begin`. Raises CorruptedError if the file ends before that."""

    def close(self) -> None: ...


class ReadableStore(Protocol):
    """Where checkpoints can be read. Methods raise CorruptedError if a file is missing or too short."""

    @property
    def where(self) -> str:
        """Location of the store, for messages."""

    def read(self, name: str, file: str, limit: int) -> bytes:
        """Return the content of a small file. Raises CorruptedError if it has more than `limit` bytes."""

    def open(self, name: str, file: str) -> StoredFile: ...


class Store(ReadableStore, Protocol):
    """A set of named checkpoints, each of a few files per rank. A checkpoint exists from `commit` to `retire`.

    Only one generation of a run may write: `fence` ends all others, so that nothing that they still do counts. A save
    is `begin`, then `write` on every rank, then `commit`, or `abandon` if a rank failed. A removal is `retire`,
    then `erase` on every rank, then `clear`. Methods raise CorruptedError if a file is missing or too short, and
    OSError for everything else: a resume skips a corrupted checkpoint, but stops at an OSError.
    """

    def enter(self, generation: str) -> None:
        """Write as this generation from now on. Called by every rank. The tokens of its checkpoints begin with it."""

    def fence(self) -> None:
        """End all other generations. Called by one rank, before it asks for `names`."""

    def begin(self, name: str) -> None:
        """Create the staging area of a new checkpoint. Called by one rank; the other ranks must see the result."""

    def write(self, name: str, file: str, parts: Iterable[Bytes]) -> None:
        """Write a file of a checkpoint that is not committed yet. On return the file survives a power failure."""

    def commit(self, name: str, root: bytes) -> None:
        """Write the root manifest, which makes the checkpoint exist. Called by one rank once all have written."""

    def abandon(self, name: str) -> None:
        """Remove what was written of a checkpoint that will not be committed."""

    def names(self) -> list[str]:
        """Return the names of the existing checkpoints, oldest first."""

    def retire(self, name: str) -> None:
        """End the existence of a checkpoint. Called by one rank, before its files are erased."""

    def erase(self, name: str, files: Sequence[str]) -> None:
        """Delete files of a retired checkpoint. The ranks divide the files among themselves."""

    def clear(self) -> None:
        """Delete all that remains of retired checkpoints and of saves that were begun but not committed."""


def name_of(step: int, token: str) -> str:
    """Return the name of a checkpoint. Every save has its own token, so no save overwrites another."""
    return f"step-{step:08d}-{token}"


def step_of(name: str) -> int:
    """Return the step in a checkpoint's name."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise CorruptedError(f"{name[:80]!r}: not the name of a checkpoint, such as {name_of(100, '0' * 16)!r}")
    return int(match[1])


def sorted_checkpoint_names(names: Iterable[str]) -> list[str]:
    """Return those of `names` that are names of checkpoints, oldest first."""
    return sorted((name for name in names if _NAME.fullmatch(name)), key=lambda name: (step_of(name), name))


def empty(store: Store) -> None:
    """Remove every checkpoint from the store."""
    for name in store.names():
        store.retire(name)
    store.clear()
