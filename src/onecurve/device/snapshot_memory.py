"""Memory for one snapshot, shared between a rank and its keeper. It outlives the rank, and leaves nothing behind.

The header is written last: a snapshot whose writer was killed has no step. This module does not import torch.
"""

import mmap
import os
import struct

_HEADER = struct.Struct("<QQQQ")
"""Step + 1, or 0 if the snapshot is not complete; bytes of the data; bytes of the two texts after it."""
_HEADER_BYTES = mmap.PAGESIZE


class SnapshotMemory:
    """One snapshot: many bytes of data, and two short texts that describe them."""

    def __init__(self, descriptor: int) -> None:
        """Takes the descriptor over."""
        self.descriptor = descriptor
        self._memory = mmap.mmap(descriptor, 0)

    @staticmethod
    def create(nbytes: int) -> "SnapshotMemory":
        """Allocate memory for `nbytes` bytes of data."""
        descriptor = os.memfd_create("onecurve-snapshot", os.MFD_CLOEXEC)
        os.posix_fallocate(descriptor, 0, _HEADER_BYTES + nbytes)  # now: memory that is missing later ends the process
        memory = SnapshotMemory(descriptor)
        _HEADER.pack_into(memory._memory, 0, 0, nbytes, 0, 0)
        return memory

    @property
    def data(self) -> memoryview:
        """The bytes of the data."""
        return memoryview(self._memory)[_HEADER_BYTES : _HEADER_BYTES + self._fields()[1]]

    @property
    def size(self) -> int:
        """Bytes of the data."""
        return self._fields()[1]

    def read(self, begin: int, size: int) -> bytearray:
        """Return `size` bytes of the data from byte `begin`."""
        return bytearray(self.data[begin : begin + size])

    @property
    def step(self) -> int | None:
        """Steps that were done at the snapshot; None if it is not complete."""
        step = self._fields()[0]
        return step - 1 if step else None

    def begin(self) -> None:
        """Say that the data are about to change."""
        _HEADER.pack_into(self._memory, 0, 0, self._fields()[1], 0, 0)

    def complete(self, step: int, root: bytes, manifest: bytes) -> None:
        """Say that the data are complete, and what they are."""
        nbytes = self._fields()[1]
        os.pwrite(self.descriptor, root + manifest, _HEADER_BYTES + nbytes)
        _HEADER.pack_into(self._memory, 0, 0, nbytes, len(root), len(manifest))
        _HEADER.pack_into(self._memory, 0, step + 1, nbytes, len(root), len(manifest))

    def texts(self) -> tuple[bytes, bytes]:
        """The root manifest of the snapshot, and that of its rank."""
        _, nbytes, root, manifest = self._fields()
        content = os.pread(self.descriptor, root + manifest, _HEADER_BYTES + nbytes)
        return content[:root], content[root:]

    def close(self) -> None:
        """Release this process's hold on the memory. Views of `data` must not be used any more."""
        os.close(self.descriptor)

    def _fields(self) -> tuple[int, int, int, int]:
        step, nbytes, root, manifest = _HEADER.unpack_from(self._memory, 0)
        return step, nbytes, root, manifest
