"""The server against clients without the key, and against too many of them."""

import asyncio
import logging
import secrets
import socket
import time

import pytest

from coordination_services import JOB_KEY, bound_socket, connected, serving
from onecurve.coordination import strangers
from onecurve.coordination.channel import CHALLENGE_BYTES, Channel, ClientHandshake
from onecurve.coordination.errors import CoordinationError, JobKeyError
from onecurve.coordination.server import Server


async def open_stream(server: Server) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = server.address.rpartition(":")
    return await asyncio.open_connection(host, int(port))


async def is_closed(reader: asyncio.StreamReader, seconds: float = 20.0) -> bool:
    """True if the server ends the connection in time, without a further byte."""
    try:
        return await asyncio.wait_for(reader.read(1), seconds) == b""
    except ConnectionError:
        return True


async def shake_hands(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Channel:
    """Do the client's part of the handshake by hand."""
    handshake = ClientHandshake(JOB_KEY, secrets.token_bytes(16))
    writer.write(handshake.hello())
    proof, channel = handshake.prove(await reader.readexactly(CHALLENGE_BYTES))
    writer.write(proof)
    return channel


@pytest.mark.parametrize("address", ["0.0.0.0", "::"])
def test_listening_on_all_interfaces_is_refused(address):
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as listener:
        try:
            listener.bind((address, 0))
        except OSError:
            pytest.skip("no IPv6")
        with pytest.raises(CoordinationError, match=f"on all interfaces \\({address}\\): bind it to one address"):
            Server(listener, JOB_KEY)


def test_a_client_with_another_key_is_told_so_with_both_addresses():
    async def scenario():
        async with serving() as server:
            with pytest.raises(JobKeyError) as raised:
                await connected(server, secrets.token_bytes(32))
            assert server.address in str(raised.value)
            assert "(from 127.0.0.1:" in str(raised.value)
            assert "give the same --key-file on every host" in str(raised.value)
            assert not server.connections

    asyncio.run(scenario())


def test_garbage_is_answered_with_nothing(caplog):
    async def scenario():
        async with serving() as server:
            reader, writer = await open_stream(server)
            writer.write(secrets.token_bytes(500))
            assert await is_closed(reader)
            reader, writer = await open_stream(server)
            handshake = ClientHandshake(JOB_KEY, b"s" * 16)
            writer.write(handshake.hello())
            assert len(await reader.readexactly(CHALLENGE_BYTES)) == CHALLENGE_BYTES
            writer.write(secrets.token_bytes(48))
            assert await is_closed(reader)

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "the key differs: give the same --key-file on every host" in caplog.text


def test_no_more_than_the_handshake_is_read_from_a_stranger():
    async def scenario():
        async with serving() as server:
            reader, writer = await open_stream(server)
            handshake = ClientHandshake(JOB_KEY, b"s" * 16)
            writer.write(handshake.hello() + bytes(40))  # less than a proof
            await reader.readexactly(CHALLENGE_BYTES)
            await asyncio.sleep(0.1)
            [stranger] = server.strangers._arrived
            assert stranger.received_bytes == len(handshake.hello()) + 40
            writer.write(bytes(100_000))
            assert await is_closed(reader)
            assert stranger.received_bytes == len(handshake.hello()) + 48

    asyncio.run(scenario())


def test_a_replayed_or_altered_message_ends_the_connection():
    async def scenario():
        async with serving() as server:
            reader, writer = await open_stream(server)
            channel = await shake_hands(reader, writer)
            put = channel.seal(b'{"id":1,"op":"put","key":"a","value":"1","token":"t"}')
            writer.write(put)
            await reader.readexactly(4)
            writer.write(put)
            while not await is_closed(reader):
                pass
            assert server.state.revision == 1
            reader, writer = await open_stream(server)
            channel = await shake_hands(reader, writer)
            writer.write(channel.seal(b'{"id":1,"op":"put","key":"a","value":"1","token":"u"}').replace(b'"1"', b'"2"'))
            assert await is_closed(reader)
            assert server.state.revision == 1

    asyncio.run(scenario())


@pytest.mark.parametrize(
    "message",
    [
        b"not JSON",
        b"[]",
        b'{"op":"unknown"}',
        b'{"op":"put","key":5,"value":"1","token":"t"}',
        b'{"op":"put","key":"two words","value":"1","token":"t"}',
        b'{"op":"put","key":"a","value":null,"token":"t"}',
        b'{"op":"grant","lease":1,"seconds":"long"}',
        b"\xff",
    ],
)
def test_a_wrong_request_ends_its_connection_and_no_other(message, caplog):
    async def scenario():
        async with serving() as server:
            other = await connected(server)
            reader, writer = await open_stream(server)
            channel = await shake_hands(reader, writer)
            writer.write(channel.seal(message))
            assert await is_closed(reader)
            await other.put("a", "1")
            assert server.state.revision == 1
            await other.close()

    with caplog.at_level(logging.WARNING):
        asyncio.run(scenario())
    assert "closed the connection with 127.0.0.1:" in caplog.text


def test_a_stranger_that_says_nothing_is_disconnected(monkeypatch):
    monkeypatch.setattr(strangers, "HANDSHAKE_SECONDS", 0.5)

    async def scenario():
        async with serving() as server:
            reader, _ = await open_stream(server)
            assert await is_closed(reader)
            assert len(server.strangers) == 0

    asyncio.run(scenario())


def test_idle_strangers_do_not_keep_a_host_from_connecting(monkeypatch):
    monkeypatch.setattr(strangers, "MAX_STRANGERS", 20)
    monkeypatch.setattr(strangers, "_GRACE_SECONDS", 0.1)

    async def scenario():
        async with serving() as server:
            host, _, port = server.address.rpartition(":")
            idle = [socket.create_connection((host, int(port))) for _ in range(200)]
            start = time.monotonic()
            client = await connected(server)
            await client.put("hosts/a", "1")
            assert time.monotonic() - start < 10, "ten times 20 strangers had 0.1 s each"
            assert len(server.strangers) <= 20
            await client.close()
            for each in idle:
                each.close()

    asyncio.run(scenario())


def test_many_hosts_that_connect_at_once_do_not_push_each_other_out(monkeypatch):
    monkeypatch.setattr(strangers, "MAX_STRANGERS", 5)

    async def scenario():
        async with serving() as server:
            clients = await asyncio.gather(*(connected(server) for _ in range(100)))
            await asyncio.gather(*(client.put(f"hosts/{number}", "1") for number, client in enumerate(clients)))
            assert len(server.state.listing("hosts/")) == 100
            for client in clients:
                await client.close()

    asyncio.run(scenario())


def test_a_server_that_was_stopped_gives_hosts_time_to_renew_their_leases():
    async def scenario():
        async with serving() as server:
            client = await connected(server)
            lease = await client.lease(1.5)
            await client.create("hosts/a", "1", lease)
            await lease.abandon()
            time.sleep(2.0)  # the whole process, as SIGSTOP would
            await asyncio.sleep(0.2)
            assert await client._request("keep_alive", lease=lease.number)
            await client.close()

    asyncio.run(scenario())


def test_a_closed_server_leaves_no_port_open():
    async def scenario():
        listener = bound_socket()
        server = Server(listener, JOB_KEY)
        server.start()
        host, port = listener.getsockname()
        client = await connected(server)
        await server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, port))
        await client.close()

    asyncio.run(scenario())
