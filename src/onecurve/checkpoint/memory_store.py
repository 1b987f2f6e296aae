"""A snapshot in memory as a store: a checkpoint can be loaded from it."""

from collections.abc import Callable
from typing import Protocol

from onecurve.checkpoint.hashed_json import CorruptedError, load_hashed
from onecurve.checkpoint.manifest import Root, rank_of
from onecurve.checkpoint.store import ROOT, StoredFile, name_of


class RankSnapshot(Protocol):
    """What one rank has copied, in the memory of this host or of another one."""

    @property
    def size(self) -> int:
        """Bytes of the data."""

    def texts(self) -> tuple[bytes, bytes]:
        """The root manifest of the snapshot, and that of the rank."""

    def read(self, begin: int, size: int) -> bytearray:
        """Return `size` bytes of the data from byte `begin`."""


class MemoryStore:
    """A `ReadableStore` of the snapshot of one step."""

    where = "memory"

    def __init__(self, snapshot_of: Callable[[int], RankSnapshot]) -> None:
        """`snapshot_of`: rank that wrote → its snapshot."""
        self._snapshot_of = snapshot_of

    def name(self) -> str:
        """Return the name of the checkpoint that the snapshot is."""
        root = load_hashed(Root, self._of(0).texts()[0], f"{self.where}/{ROOT}")
        return name_of(root.point.step, root.token)

    def read(self, _: str, file: str, limit: int) -> bytes:
        texts = self._of(0 if file == ROOT else rank_of(file)).texts()
        content = texts[0] if file == ROOT else texts[1]
        if len(content) > limit:
            raise CorruptedError(f"{self.where}/{file}: {len(content)} bytes, must be at most {limit}")
        return content

    def open(self, _: str, file: str) -> StoredFile:
        return _OpenSnapshot(self._of(rank_of(file)))

    def _of(self, rank: int) -> RankSnapshot:
        try:
            return self._snapshot_of(rank)
        except (LookupError, OSError) as error:  # a host is lost meanwhile: an earlier checkpoint may be readable
            raise CorruptedError(f"{self.where}: {error}") from None


class _OpenSnapshot:
    """The data of a rank as an open file."""

    def __init__(self, snapshot: RankSnapshot) -> None:
        self._snapshot = snapshot
        self.size = snapshot.size

    def read(self, begin: int, size: int) -> bytearray:
        try:
            return self._snapshot.read(begin, size)
        except OSError as error:
            raise CorruptedError(f"memory: {error}") from None

    def close(self) -> None:
        pass
