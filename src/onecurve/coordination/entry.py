"""Keys, values and their changes, and the limits that both backends share."""

from typing import NamedTuple

from onecurve.coordination.errors import CoordinationError

MAX_KEY_LENGTH = 256
MAX_VALUE_BYTES = 1_000_000
"""Bytes of a value in UTF-8. etcd refuses requests of more than 1.5 MiB."""


class Entry(NamedTuple):
    """The value of a key and its version.

    A version is the number of the change that wrote the value. Every change of any key takes the next higher number,
    so a key that was deleted and created again never has a version that it had before.
    """

    value: str
    version: int


class Change(NamedTuple):
    """One key as it was written or deleted."""

    key: str
    value: str | None
    """The new value, or None if the key was deleted or its lease expired."""
    version: int
    """Number of the change. For a key that was present when the watch began, the version of its value."""


def check_key(key: str) -> None:
    """Raise CoordinationError if a key has characters or a length that are not allowed."""
    if not 0 < len(key) <= MAX_KEY_LENGTH:
        raise CoordinationError(f"key {key[:40]!r} has {len(key)} characters; allowed are 1 to {MAX_KEY_LENGTH}")
    check_prefix(key)


def check_prefix(prefix: str) -> None:
    """Raise CoordinationError if a prefix has characters that no key has."""
    if not (prefix.isascii() and prefix.isprintable() and " " not in prefix):
        raise CoordinationError(f"key {prefix[:40]!r}: only printable ASCII characters without spaces are allowed")


def check_value(key: str, value: str) -> None:
    """Raise CoordinationError if a value is not text that can be encoded, or is too large."""
    try:
        size = len(value.encode())
    except UnicodeEncodeError as error:
        raise CoordinationError(f"value of key {key!r} is not valid Unicode text: {error}") from None
    if size > MAX_VALUE_BYTES:
        raise CoordinationError(f"value of key {key!r} has {size:,} bytes; the limit is {MAX_VALUE_BYTES:,}")


def check_entry(key: str, value: str) -> None:
    """Raise CoordinationError if a key or its value is outside the limits."""
    check_key(key)
    check_value(key, value)
