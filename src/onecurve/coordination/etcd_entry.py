"""Keys and values in etcd's JSON form."""

import base64
from collections.abc import Mapping
from typing import Any, NamedTuple

from onecurve.coordination.entry import Change


class EtcdEntry(NamedTuple):
    """A key as etcd has it. Its value is stored after the token of the call that wrote it and a space."""

    value: str
    version: int
    token: str

    @classmethod
    def decode(cls, plain: Mapping[str, Any]) -> "EtcdEntry":
        token, _, value = base64.b64decode(plain.get("value", "")).decode().partition(" ")
        return cls(value, int(plain["mod_revision"]), token)


def encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def encode_value(value: str, token: str) -> str:
    return encode(f"{token} {value}")


def decode_key(plain: Mapping[str, Any], namespace: str) -> str:
    return base64.b64decode(plain["key"]).decode().removeprefix(namespace)


def key_range(prefix: str) -> dict[str, str]:
    """Return the fields of a request for all keys that begin with a prefix, which is not empty."""
    return {"key": encode(prefix), "range_end": encode(prefix[:-1] + chr(ord(prefix[-1]) + 1))}


def listed(plain: Mapping[str, Any], namespace: str) -> Change:
    """Return a key of a listing."""
    entry = EtcdEntry.decode(plain)
    return Change(decode_key(plain, namespace), entry.value, entry.version)


def changed(event: Mapping[str, Any], namespace: str) -> Change:
    """Return the change of an event of a watch."""
    if event.get("type") == "DELETE":
        return Change(decode_key(event["kv"], namespace), None, int(event["kv"]["mod_revision"]))
    return listed(event["kv"], namespace)
