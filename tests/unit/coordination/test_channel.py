"""The authenticated channel: what is refused."""

import secrets

import pytest

from onecurve.coordination.channel import (
    CODE_BYTES,
    HEADER_BYTES,
    MAX_MESSAGE_BYTES,
    Channel,
    ChannelError,
    ClientHandshake,
    ServerHandshake,
    message_bytes,
)
from onecurve.coordination.errors import CoordinationError, JobKeyError

KEY = b"k" * 32
SESSION = b"s" * 16


def pair(key: bytes = KEY) -> tuple[Channel, Channel]:
    """The client's and the server's channel of a new connection."""
    client, server = ClientHandshake(key, SESSION), ServerHandshake(key)
    proof, client_channel = client.prove(server.challenge(client.hello()))
    session, server_channel = server.accept(proof)
    assert session == SESSION
    return client_channel, server_channel


def opened(channel: Channel, frame: bytes) -> bytes:
    text = frame[HEADER_BYTES:-CODE_BYTES]
    channel.open(text, frame[-CODE_BYTES:])
    return text


def test_messages_pass_in_both_directions():
    client, server = pair()
    for text in (b"", b"one", b"two"):
        assert opened(server, client.seal(text)) == text
        assert opened(client, server.seal(text)) == text


def test_a_server_with_another_key_is_recognized_before_the_client_proves_anything():
    client, server = ClientHandshake(KEY, SESSION), ServerHandshake(secrets.token_bytes(32))
    with pytest.raises(JobKeyError, match="the key differs: give the same --key-file on every host"):
        client.prove(server.challenge(client.hello()))


def test_a_client_with_another_key_is_refused():
    other_key = secrets.token_bytes(32)
    server, server_of_other_job = ServerHandshake(KEY), ServerHandshake(other_key)
    stranger = ClientHandshake(other_key, SESSION)
    server.challenge(stranger.hello())
    proof, _ = stranger.prove(server_of_other_job.challenge(stranger.hello()))
    with pytest.raises(JobKeyError):
        server.accept(proof)


def test_a_proof_of_another_connection_is_refused():
    client, server, again = ClientHandshake(KEY, SESSION), ServerHandshake(KEY), ServerHandshake(KEY)
    proof, _ = client.prove(server.challenge(client.hello()))
    again.challenge(client.hello())
    with pytest.raises(JobKeyError):
        again.accept(proof)


def test_a_proof_under_another_session_is_refused():
    client, server = ClientHandshake(KEY, SESSION), ServerHandshake(KEY)
    proof, _ = client.prove(server.challenge(client.hello()))
    with pytest.raises(JobKeyError):
        server.accept(b"t" * 16 + proof[16:])


def test_the_challenge_sent_back_is_no_proof():
    server = ServerHandshake(KEY)
    client = ClientHandshake(KEY, SESSION)
    challenge = server.challenge(client.hello())
    with pytest.raises(JobKeyError):
        server.accept(SESSION + challenge[32:])


def test_another_protocol_is_refused():
    with pytest.raises(ChannelError, match="use the same version of onecurve on every host"):
        ServerHandshake(KEY).challenge(b"GET / HTTP/1.1\r\n".ljust(56))


def test_altered_repeated_reordered_reflected_and_foreign_messages_are_refused():
    client, server = pair()
    first, second, third = (client.seal(text) for text in (b"first", b"second", b"third"))
    altered = first.replace(b"first", b"worst")
    reflected = server.seal(b"first")
    foreign = pair()[0].seal(b"first")
    for frame in (second, altered, reflected, foreign):
        with pytest.raises(ChannelError, match="altered, repeated or out of order"):
            opened(server, frame)
    assert opened(server, first) == b"first"
    for frame in (first, third):
        with pytest.raises(ChannelError):
            opened(server, frame)
    assert opened(server, second) == b"second"


def test_a_length_above_the_limit_is_refused_from_the_header_alone():
    header = memoryview((MAX_MESSAGE_BYTES + 1).to_bytes(4, "big"))
    with pytest.raises(ChannelError, match="8,388,609 bytes was announced; the limit is 8,388,608"):
        message_bytes(header, 0)
    with pytest.raises(CoordinationError, match="the limit is 8,388,608"):
        pair()[0].seal(bytes(MAX_MESSAGE_BYTES + 1))


@pytest.mark.parametrize("key", [b"", b"short", b"k" * 33])
def test_a_key_of_another_length_is_refused(key):
    with pytest.raises(CoordinationError, match=f"has {len(key)} bytes; it must have 32"):
        ClientHandshake(key, SESSION)
