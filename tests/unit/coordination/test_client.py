"""The client when its connection fails."""

import asyncio
import secrets
import socket
from contextlib import asynccontextmanager

import pytest

from coordination_services import JOB_KEY, bound_socket, connected, serving
from onecurve.coordination.client import RemoteCoordination
from onecurve.coordination.errors import UnreachableError
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.server import Server, ServerConnection


def cut_connections(server: Server) -> None:
    for connection in [*server.connections.values()]:
        connection.abort()


@asynccontextmanager
async def serving_without_answers(monkeypatch, count):
    """A server that carries requests out and loses its connection before it answers the first `count` of them."""
    received = ServerConnection.message_received
    left = count

    def lose(self, message):
        nonlocal left
        if left and "id" in message:
            left -= 1
            message = {name: value for name, value in message.items() if name != "id"}
            received(self, message)
            self.abort()
        else:
            received(self, message)

    async with serving() as server:
        client = await connected(server)
        monkeypatch.setattr(ServerConnection, "message_received", lose)
        yield server, client
        await client.close()


def test_a_watch_misses_nothing_when_its_connection_is_cut():
    async def scenario():
        async with serving() as server:
            local, client = LocalCoordination(server.state, server.clock), await connected(server)
            await local.put("hosts/a", "1")
            watch = await client.watch("hosts/")
            assert len(await anext(watch)) == 1
            known: dict[str, str | None] = {}
            for number in range(100):
                await local.put(f"hosts/{number % 7}", str(number))
                if number % 10 == 5:
                    cut_connections(server)
                await asyncio.sleep(0.005)
            await local.delete("hosts/a")
            await local.put("hosts/last", "x")
            versions: dict[str, int] = {}
            async for changes in watch:
                for change in changes:
                    assert change.version > versions.get(change.key, 0)
                    versions[change.key] = change.version
                    known[change.key] = change.value
                if "hosts/last" in known:
                    break
            assert known["hosts/a"] is None
            present = {change.key: change.value for change in server.state.listing("hosts/")}
            assert {key: value for key, value in known.items() if value is not None} == present
            await client.close()

    asyncio.run(scenario())


def test_a_lease_outlives_a_cut_connection():
    async def scenario():
        async with serving() as server:
            client = await connected(server)
            lease = await client.lease(1.5)
            await client.create("hosts/a", "1", lease)
            for _ in range(3):
                cut_connections(server)
                await asyncio.sleep(0.6)
            assert not lease.lost.is_set()
            assert server.state.get("hosts/a") is not None
            await client.close()

    asyncio.run(scenario())


def test_a_write_whose_answer_was_lost_is_carried_out_once(monkeypatch):
    async def scenario():
        async with serving_without_answers(monkeypatch, 3) as (server, client):
            assert await client.create("leader", "me"), "the second attempt finds that the first has created it"
            assert server.state.revision == 1
            assert await client.compare_and_set("leader", 1, "still me")
            assert server.state.revision == 2
            assert (await client.get("leader")).value == "still me"

    asyncio.run(scenario())


def test_a_repeated_delete_spares_what_another_host_has_created_between(monkeypatch):
    async def scenario():
        async with serving_without_answers(monkeypatch, 0) as (server, client):
            await client.put("leader", "me")
            version = (await client.get("leader")).version
            await client.delete("leader")
            server.state.create("leader", "another", None, "t")
            assert not await client._request("delete", key="leader", version=version)
            assert (await client.get("leader")).value == "another"

    asyncio.run(scenario())


def test_an_older_connection_of_a_client_ends_when_it_has_a_new_one():
    async def scenario():
        async with serving() as server:
            client = await connected(server)
            await client.get("hosts/a")
            [older] = server.connections.values()
            # The client has given up the connection, but its end has not reached the server.
            client._connection._client = RemoteCoordination("127.0.0.1", 1, JOB_KEY)
            await client._connect(timeout=10)
            await client.put("hosts/a", "1")
            assert [*server.connections.values()] != [older]
            assert not older.is_connected
            await client.close()

    asyncio.run(scenario())


def test_everything_that_waits_is_told_when_the_server_is_gone():
    async def scenario():
        async with serving() as server:
            client = await connected(server, timeout=1.0)
            lease = await client.lease(1.0)
            watch = await client.watch("hosts/")
            assert await anext(watch) == []
        with pytest.raises(UnreachableError, match=r"127\.0\.0\.1:\d+ could not be reached from host '.*' for 1 s"):
            await anext(watch)
        with pytest.raises(UnreachableError):
            await client.put("hosts/a", "1")
        await asyncio.wait_for(lease.lost.wait(), 30)
        await client.close()

    asyncio.run(scenario())


def test_a_server_that_does_not_answer_is_named():
    async def scenario():
        with bound_socket() as listener:
            listener.listen()
            host, port = listener.getsockname()
            with pytest.raises(UnreachableError, match=f"{host}:{port} could not be reached .* no firewall"):
                await RemoteCoordination.connect(host, port, secrets.token_bytes(32), timeout=0.5)

    asyncio.run(scenario())


def test_a_listing_that_is_longer_than_one_message_arrives_complete():
    async def scenario():
        async with serving() as server:
            for number in range(60):
                server.state.put(f"hosts/{number:02d}", "x" * 50_000, None, str(number))
            client = await connected(server)
            watch = await client.watch("hosts/")
            assert [change.key for change in await anext(watch)] == [f"hosts/{number:02d}" for number in range(60)]
            await client.close()

    asyncio.run(scenario())


def test_sockets_notice_a_host_that_is_gone_without_a_word():
    async def scenario():
        async with serving() as server:
            client = await connected(server)
            await client.get("hosts/a")
            [connection] = server.connections.values()
            sock = connection._transport.get_extra_info("socket")
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 5000
            await client.close()

    asyncio.run(scenario())
