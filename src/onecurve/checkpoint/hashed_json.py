"""Small JSON files that contain the hash of their own content, so that damage is detected when they are read."""

from typing import TypeVar

import xxhash

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError

T = TypeVar("T")

_PREFIX, _SEPARATOR, _SUFFIX = b'{"hash":"', b'","body":', b"}"
_HASH_LENGTH = 32


class CorruptedError(OnecurveError):
    """A checkpoint is incomplete, or its content differs from what was written."""


def digest(data: bytes | bytearray | memoryview) -> str:
    """Return the XXH3 hash of `data` as 32 hexadecimal digits.

    It detects accidental damage, not tampering: whoever can write a chunk can also write its hash (see
    docs/decisions/0010-checkpoints.md).
    """
    return xxhash.xxh3_128_hexdigest(data)


def dump_hashed(value: object) -> bytes:
    """Encode a dataclass as JSON together with the hash of that JSON."""
    body = to_json(value).encode()
    return b"".join((_PREFIX, digest(body).encode(), _SEPARATOR, body, _SUFFIX))


def load_hashed(kind: type[T], content: bytes, where: str) -> T:
    """Decode what `dump_hashed` wrote into a `kind`; errors name `where`. Raises CorruptedError if it is damaged."""
    begin = len(_PREFIX) + _HASH_LENGTH + len(_SEPARATOR)
    body = content[begin:-1]
    if content != b"".join((_PREFIX, digest(body).encode(), _SEPARATOR, body, _SUFFIX)):
        raise CorruptedError(f"{where}: damaged, its hash does not match its content")
    try:
        return from_json(kind, body, where)
    except OnecurveError as error:
        text = str(error)
        raise CorruptedError(text if text.startswith(where) else f"{where}: {text}") from None
