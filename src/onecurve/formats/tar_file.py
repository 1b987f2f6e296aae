"""Tar files in the layout of WebDataset: consecutive members with the same name up to its first dot are one sample."""

import io
import tarfile
import zlib
from typing import IO, Any

from onecurve.formats.file_format import BadFileError, FilePart, RandomReader, SampleReader, check_offsets, offsets
from onecurve.formats.index_file import Numbers
from onecurve.formats.storage import HashedStream

_BLOCK = 512
_NAME_BYTES, _SIZE, _CHECKSUM, _TYPE, _PREFIX_BEGIN = 100, slice(124, 136), slice(148, 156), 156, 345
"""Where the fields of a header are."""
_SPACES = 8 * ord(" ")
"""The checksum counts its own bytes as spaces."""
_ADLER_PRIME = 65521
_OCTAL = frozenset(b"01234567")
_MAX_SAMPLE_BYTES = 1 << 30
_MAGIC_AT = slice(257, 262)


class TarFormat:
    """Samples are dicts: the bytes of each member by its extension, and `__key__`, the name that they share."""

    name = "tar"

    def recognizes(self, path: str, head: bytes) -> bool:  # noqa: ARG002
        return head[_MAGIC_AT] == b"ustar"

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:
        begins, end, before = list[int](), 0, None
        try:
            with tarfile.open(fileobj=stream, mode="r|", bufsize=1 << 20) as members:  # type: ignore[call-overload]
                for member in members:
                    if member.offset_data + member.size > size:
                        raise BadFileError(f"member {member.name!r} says that it has {member.size:,} bytes")
                    if not member.isreg():
                        continue  # a folder, or a link, which is never followed
                    key, _ = _key_and_extension(member.name)
                    if key != before:
                        begins.append(member.offset)
                        before = key
                    end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
        except (tarfile.TarError, OSError, ValueError) as error:
            raise BadFileError(f"it is damaged ({error})") from None
        return [FilePart(len(begins), offsets(begins, end))]

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        return _SampleReader(file, samples, details)


class _SampleReader:
    def __init__(self, file: IO[bytes], samples: int, details: Numbers) -> None:
        self._file, self._begins = RandomReader(file), check_offsets(details, samples, 1 << 62)

    def read(self, offset: int) -> Any:
        begin, end = int(self._begins[offset]), int(self._begins[offset + 1])
        if end - begin > _MAX_SAMPLE_BYTES:
            raise BadFileError(f"sample {offset} has more than {_MAX_SAMPLE_BYTES:,} bytes")
        data = self._file.between(begin, end)
        sample: dict[str, Any] = _plain_sample(data)
        if sample:
            return sample
        try:
            with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as members:
                for member in members:
                    if member.isreg():
                        sample["__key__"], extension = _key_and_extension(member.name)
                        sample[extension] = data[member.offset_data : member.offset_data + member.size]
        except (tarfile.TarError, OSError, ValueError) as error:
            raise BadFileError(f"sample {offset} is damaged ({error})") from None
        if not sample:
            raise BadFileError(f"sample {offset} is damaged (it has no member)")
        return sample


def _plain_sample(data: bytes) -> dict[str, Any]:
    """Return a sample that has only plain members, which is what most have; empty for all others.

    Python's tarfile understands every kind of member, and takes several times as long.
    """
    sample: dict[str, Any] = {}
    begin = 0
    while begin < len(data):
        header = data[begin : begin + _BLOCK]
        stored = header[_CHECKSUM].rstrip(b"\0 ")
        size = header[_SIZE].rstrip(b"\0 ")
        is_plain = len(header) == _BLOCK and header[_TYPE] in b"0\0" and not header[_PREFIX_BEGIN]
        if not (is_plain and _OCTAL.issuperset(stored) and _OCTAL.issuperset(size) and stored and size):
            return {}
        # The lower half of Adler-32 is one more than the sum of the bytes, modulo a prime, and is computed in C.
        expected = int(stored, 8) - _SPACES + sum(header[_CHECKSUM]) + 1
        if zlib.adler32(header) & 0xFFFF != expected % _ADLER_PRIME:
            return {}
        first, last = begin + _BLOCK, begin + _BLOCK + int(size, 8)
        name = header[:_NAME_BYTES].partition(b"\0")[0]
        if last > len(data) or not name.isascii():
            return {}
        sample["__key__"], extension = _key_and_extension(name.decode())
        sample[extension] = data[first:last]
        begin = first + -(-(last - first) // _BLOCK) * _BLOCK
    return sample


def _key_and_extension(name: str) -> tuple[str, str]:
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension.lower()
