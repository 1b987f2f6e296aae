"""Folders of images, sounds or other small files: one class per folder, one sample per file."""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onecurve.formats.file_format import BadFileError
from onecurve.formats.index_file import Numbers, refuse_escaping

NAME = "folder"
_HEADS = (b"\xff\xd8\xff", b"\x89PNG\r\n", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"fLaC", b"OggS", b"ID3", b"\xff\xfb")
_WORD = struct.Struct("<Q")


def is_media(head: bytes) -> bool:
    """True for the begin of an image or a sound."""
    return head.startswith(_HEADS) or (head[:4] == b"RIFF" and head[8:12] in (b"WAVE", b"WEBP"))


@dataclass(frozen=True)
class FolderFile:
    """A file of a class."""

    name: str
    size: int
    stamp: int
    hash: int


def encode_files(files: Sequence[FolderFile]) -> Numbers:
    """The files of a class as the details of its piece: their number; for each the end of its name, its size, stamp and
    hash; and the names."""
    names = bytearray()
    numbers = [len(files)]
    for file in files:
        names += file.name.encode()
        numbers += [len(names), file.size, file.stamp, file.hash]
    names += bytes(-len(names) % _WORD.size)
    return np.concatenate([np.array(numbers, np.uint64), np.frombuffer(bytes(names), np.uint64)])


class FolderFiles:
    """The files of a class, as its piece has them."""

    def __init__(self, details: Numbers, samples: int) -> None:
        if len(details) < 1 + 4 * samples or int(details[0]) != samples:
            raise BadFileError("its index does not fit the folder")
        self._rows = details[1 : 1 + 4 * samples].reshape(-1, 4)
        self._names = details[1 + 4 * samples :].tobytes()
        ends = self._rows[:, 0]
        if samples and (int(ends[-1]) > len(self._names) or bool((ends[1:] < ends[:-1]).any())):
            raise BadFileError("its index does not fit the folder")

    def file(self, offset: int) -> FolderFile:
        end, size, stamp, hashed = map(int, self._rows[offset])
        begin = int(self._rows[offset - 1, 0]) if offset else 0
        try:
            name = self._names[begin:end].decode()
        except UnicodeDecodeError:
            raise BadFileError(f"its index has a name that is no text, of sample {offset}") from None
        refuse_escaping(name, "index")
        return FolderFile(name, size, stamp, hashed)
