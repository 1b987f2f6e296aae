"""Small JSON files that carry their own hash: what is read is what was written, or an error."""

from typing import TypeVar

import xxhash

from onecurve.describe.convert import from_json, to_json
from onecurve.describe.errors import OnecurveError

T = TypeVar("T")

_BEFORE, _BETWEEN, _AFTER = b'{"hash":"', b'","body":', b"}"
_HASH = 32


class CorruptedError(OnecurveError):
    """A checkpoint that is not what was written, or not all of it."""


def digest(data: bytes | bytearray | memoryview) -> str:
    """Against accidents, not against forgers: who can write a chunk can write its hash (docs/decisions/0010)."""
    return xxhash.xxh3_128_hexdigest(data)


def dump_hashed(noun: object) -> bytes:
    body = to_json(noun).encode()
    return b"".join((_BEFORE, digest(body).encode(), _BETWEEN, body, _AFTER))


def load_hashed(kind: type[T], raw: bytes, where: str) -> T:
    begin = len(_BEFORE) + _HASH + len(_BETWEEN)
    body = raw[begin:-1]
    if raw != b"".join((_BEFORE, digest(body).encode(), _BETWEEN, body, _AFTER)):
        raise CorruptedError(f"{where}: damaged, its hash is not that of its content")
    try:
        return from_json(kind, body, where)
    except OnecurveError as error:
        text = str(error)
        raise CorruptedError(text if text.startswith(where) else f"{where}: {text}") from None
