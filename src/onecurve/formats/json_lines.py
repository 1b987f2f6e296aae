"""Files of JSON lines, plain or compressed by gzip or Zstandard."""

import zlib
from collections.abc import Iterator
from typing import IO, Any, Protocol, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError, FilePart, RandomReader, SampleReader, check_offsets, offsets
from onecurve.formats.index_file import Numbers
from onecurve.formats.storage import HashedStream

_BLOCK_BYTES = 1 << 22
_MAX_TEXT_BYTES = 1 << 30
"""A compressed file is uncompressed as a whole to read samples in any order."""
_MAX_LINE_BYTES = 1 << 28
_GZIP, _ZSTANDARD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_NEWLINE, _RETURN = 10, 13
_DECODER = msgspec.json.Decoder()


Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class _Reads(Protocol):
    def read(self, size: int, /) -> bytes: ...


class JsonLinesFormat:
    """One JSON value per line."""

    name = "JSON lines"

    def recognizes(self, path: str, head: bytes) -> bool:
        if head.startswith((_GZIP, _ZSTANDARD)):
            return ".json" in path or ".ndjson" in path
        text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
        return text[:1] in (b"{", b"[") or (path.endswith((".jsonl", ".ndjson")) and b"\0" not in head)

    def scan(self, stream: HashedStream, size: int) -> list[FilePart]:  # noqa: ARG002
        ends, after_return, end, last = list[Integers](), list[Flags](), 0, 0
        for block in uncompressed(stream):
            characters = np.frombuffer(block, np.uint8)
            newlines = np.flatnonzero(characters == _NEWLINE)
            before = np.concatenate((np.array([last], np.uint8), characters[:-1]))
            ends.append(newlines + end + 1)
            after_return.append(before[newlines] == _RETURN)
            end, last = end + len(block), int(characters[-1])
        found = np.concatenate([np.zeros(1, np.int64), *ends])
        lengths = np.diff(found)
        has_text = lengths > 1 + np.concatenate([np.zeros(0, bool), *after_return])
        begins = found[:-1][has_text]
        if end > found[-1]:  # a last line without a newline
            begins = np.append(begins, found[-1])
        if len(begins) and int(np.diff(np.append(begins, end)).max()) > _MAX_LINE_BYTES:
            raise BadFileError(f"a line has more than {_MAX_LINE_BYTES:,} bytes")
        return [FilePart(len(begins), offsets(begins, end))]

    def open(self, file: IO[bytes], samples: int, details: Numbers) -> SampleReader:
        return _LineReader(file, samples, details)


class _LineReader:
    def __init__(self, file: IO[bytes], samples: int, details: Numbers) -> None:
        head = file.read(4)
        file.seek(0)
        self._file, self._text = RandomReader(file), None
        size = 1 << 62
        if head.startswith((_GZIP, _ZSTANDARD)):
            self._text = _all_of(file, int(details[-1]) if len(details) else 0)
            size = len(self._text)
        self._begins = check_offsets(details, samples, size)

    def read(self, offset: int) -> Any:
        begin, end = int(self._begins[offset]), int(self._begins[offset + 1])
        if end - begin > _MAX_LINE_BYTES:
            raise BadFileError(f"the line at byte {begin:,} has more than {_MAX_LINE_BYTES:,} bytes")
        line = self._file.between(begin, end) if self._text is None else self._text[begin:end]
        try:
            return _DECODER.decode(line.removeprefix(b"\xef\xbb\xbf") if offset == 0 else line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadFileError(f"the JSON of the line at byte {begin:,} cannot be read ({error})") from None


def uncompressed(stream: _Reads) -> Iterator[bytes]:
    """The blocks of a file, uncompressed if they have to be."""
    block = stream.read(_BLOCK_BYTES)
    if block.startswith(_GZIP):
        yield from _gunzipped(block, stream)
    elif block.startswith(_ZSTANDARD):
        yield from _unzstandarded(block, stream)
    else:
        while block:
            yield block
            block = stream.read(_BLOCK_BYTES)


def _gunzipped(block: bytes, stream: _Reads) -> Iterator[bytes]:
    """A file of gzip may have several members, one after the other."""
    member = zlib.decompressobj(31)
    while block:
        try:
            text = member.decompress(block, _BLOCK_BYTES)
        except zlib.error as error:
            raise BadFileError(f"it is damaged ({error})") from None
        if text:
            yield text
        block = member.unconsumed_tail
        if member.eof:
            block, member = member.unused_data, zlib.decompressobj(31)
            block = block or stream.read(_BLOCK_BYTES)
        elif not block:
            block = stream.read(_BLOCK_BYTES)
            if not block:
                raise BadFileError("it ends in the middle")


def _unzstandarded(block: bytes, stream: _Reads) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError:
        raise OnecurveError(
            "files compressed by Zstandard need zstandard; install it with `pip install 'onecurve[data]'`"
        ) from None
    reader = zstandard.ZstdDecompressor().stream_reader(
        cast("IO[bytes]", _Chained(block, stream)), read_across_frames=True
    )
    try:
        while text := reader.read(_BLOCK_BYTES):
            yield text
    except zstandard.ZstdError as error:
        raise BadFileError(f"it is damaged ({error})") from None


class _Chained:
    """A block, and then the rest of a stream."""

    def __init__(self, block: bytes, stream: _Reads) -> None:
        self._block, self._stream = block, stream

    def read(self, size: int) -> bytes:
        if not self._block:
            return self._stream.read(size)
        found, self._block = self._block[:size], self._block[size:]
        return found


def _all_of(file: IO[bytes], size: int) -> bytes:
    if size > _MAX_TEXT_BYTES:
        raise BadFileError(
            f"it has {size:,} bytes without compression; the most that can be read in any order are "
            f"{_MAX_TEXT_BYTES:,}: divide it into smaller files"
        )
    text = bytearray()
    for block in uncompressed(file):
        text += block
        if len(text) > size:
            break
    return bytes(text)
