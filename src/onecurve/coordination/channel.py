"""The authenticated channel between a client and the server: proofs of the job's key and message authentication codes.

At the start of a connection both sides prove, with a challenge, that they know the job's key:

1. client → server: name and version of this protocol, 32 random bytes;
2. server → client: 32 random bytes and HMAC-SHA256 with the job's key over both;
3. client → server: its session and HMAC-SHA256 with the job's key over all of it.

These three messages have fixed sizes and are compared, never decoded. From the key and the random bytes follow two
keys that only this connection uses, one per direction. A later message is its length (4 bytes), JSON text or data, and
keyed BLAKE2b over the number of the message, its length and its content: snapshots of gigabytes are sent this way, and
on processors without instructions for SHA it is about twice as fast.

Protected: who lacks the key can neither get a message decoded nor read a value by asking for it. A message that was
altered, repeated, left out, reordered, sent back to its sender or taken from another connection is refused and ends
the connection.

Not protected: messages are not encrypted, so whoever can listen on the network reads them. Whoever controls the
network can cut, delay or hold connections. Whoever has the key can do everything that a host of the job can.
"""

import hashlib
import hmac
import secrets
import struct
from typing import NamedTuple

from onecurve.coordination.errors import CoordinationError, JobKeyError

JOB_KEY_BYTES = 32
MAX_MESSAGE_BYTES = 8 * 2**20
"""Larger than the largest value in JSON, where a character may take six bytes."""
SESSION_BYTES = 16
HEADER_BYTES, CODE_BYTES = 4, 32
_PROTOCOL = b"onecurve coordination 2\n"
_NONCE_BYTES = 32
HELLO_BYTES = len(_PROTOCOL) + _NONCE_BYTES
CHALLENGE_BYTES = _NONCE_BYTES + CODE_BYTES
PROOF_BYTES = SESSION_BYTES + CODE_BYTES
_HEADER = struct.Struct(">I")
_NUMBERED_HEADER = struct.Struct(">QI")


class Channel:
    """Seals the messages of one direction of one connection and opens those of the other."""

    __slots__ = ("_opened", "_receive_key", "_sealed", "_send_key")

    def __init__(self, send_key: bytes, receive_key: bytes) -> None:
        self._send_key, self._receive_key = send_key, receive_key
        self._sealed = self._opened = 0

    def seal(self, text: bytes) -> bytes:
        """Return the bytes to send for a message."""
        header, code = self.seal_around(text)
        return header + text + code

    def seal_around(self, content: bytes | memoryview) -> tuple[bytes, bytes]:
        """Return what is sent before the content of a message and what is sent after it."""
        size = len(content)
        if size > MAX_MESSAGE_BYTES:
            raise CoordinationError(f"a message has {size:,} bytes; the limit is {MAX_MESSAGE_BYTES:,}")
        code = _message_code(self._send_key, self._sealed, content)
        self._sealed += 1
        return _HEADER.pack(size), code

    def open(self, content: bytes | memoryview, code: bytes | memoryview) -> None:
        """Raise ChannelError if this is not the content of the next message of the other side."""
        if not hmac.compare_digest(code, _message_code(self._receive_key, self._opened, content)):
            raise ChannelError(f"message {self._opened + 1} was altered, repeated or out of order")
        self._opened += 1


class ChannelError(CoordinationError):
    """The other side sent something that the protocol does not allow. The connection is closed."""


def message_bytes(data: memoryview, position: int) -> int:
    """Return the length of the text that a header announces; raise ChannelError if it is too large."""
    length: int = _HEADER.unpack_from(data, position)[0]
    if length > MAX_MESSAGE_BYTES:
        raise ChannelError(f"a message of {length:,} bytes was announced; the limit is {MAX_MESSAGE_BYTES:,}")
    return length


class ClientHandshake:
    """The client's part of the challenge."""

    def __init__(self, job_key: bytes, session: bytes) -> None:
        self._job_key, self._session = _checked(job_key), session
        self._nonce = secrets.token_bytes(_NONCE_BYTES)

    def hello(self) -> bytes:
        return _PROTOCOL + self._nonce

    def prove(self, challenge: bytes) -> tuple[bytes, Channel]:
        """Verify the server's challenge; return the client's proof and the channel that it opens."""
        nonces = self._nonce + challenge[:_NONCE_BYTES]
        if not hmac.compare_digest(challenge[_NONCE_BYTES:], _code(self._job_key, b"server", nonces)):
            raise JobKeyError("the key differs: give the same --key-file on every host")
        proof = self._session + _code(self._job_key, b"client", nonces + self._session)
        keys = _direction_keys(self._job_key, nonces + self._session)
        return proof, Channel(keys.client_to_server, keys.server_to_client)


class ServerHandshake:
    """The server's part of the challenge."""

    __slots__ = ("_job_key", "_nonces")

    def __init__(self, job_key: bytes) -> None:
        self._job_key = _checked(job_key)
        self._nonces = b""

    def challenge(self, hello: bytes) -> bytes:
        """Return the challenge for a client's hello; raise ChannelError if it speaks another protocol."""
        if not hello.startswith(_PROTOCOL):
            raise ChannelError("it speaks another protocol: use the same version of onecurve on every host")
        self._nonces = hello[len(_PROTOCOL) :] + secrets.token_bytes(_NONCE_BYTES)
        return self._nonces[_NONCE_BYTES:] + _code(self._job_key, b"server", self._nonces)

    def accept(self, proof: bytes) -> tuple[bytes, Channel]:
        """Verify the client's proof; return its session and the channel."""
        session = proof[:SESSION_BYTES]
        if not hmac.compare_digest(proof[SESSION_BYTES:], _code(self._job_key, b"client", self._nonces + session)):
            raise JobKeyError("the key differs: give the same --key-file on every host")
        keys = _direction_keys(self._job_key, self._nonces + session)
        return session, Channel(keys.server_to_client, keys.client_to_server)


class DirectionKeys(NamedTuple):
    """The keys of one connection."""

    client_to_server: bytes
    server_to_client: bytes


def _direction_keys(job_key: bytes, transcript: bytes) -> DirectionKeys:
    return DirectionKeys(
        _code(job_key, b"client to server", transcript), _code(job_key, b"server to client", transcript)
    )


def _message_code(key: bytes, number: int, content: bytes | memoryview) -> bytes:
    code = hashlib.blake2b(_NUMBERED_HEADER.pack(number, len(content)), digest_size=CODE_BYTES, key=key)
    code.update(content)
    return code.digest()


def _code(job_key: bytes, purpose: bytes, data: bytes) -> bytes:
    """Return an HMAC that is valid for one purpose only."""
    return hmac.digest(job_key, _PROTOCOL + purpose + b"\0" + data, "sha256")


def _checked(job_key: bytes) -> bytes:
    if len(job_key) != JOB_KEY_BYTES:
        raise CoordinationError(f"the job's key has {len(job_key)} bytes; it must have {JOB_KEY_BYTES}")
    return job_key
