"""Requests that a server has received, as JSON objects."""

from collections.abc import Mapping
from typing import Any, TypeVar

from onecurve.coordination.channel import ChannelError

T = TypeVar("T")


def message_field(message: Mapping[str, Any], name: str, kind: type[T]) -> T:
    """Return a field of a request; raise ChannelError if it is missing or of another type."""
    value = message.get(name) if isinstance(message, dict) else None
    if type(value) is not kind:
        raise ChannelError(f"a request has no {kind.__name__} {name!r}: use the same version of onecurve on every host")
    return value
