"""What every backend promises, tested on each of them: in the server's process, over TCP, and with a real etcd."""

import asyncio
import time

import pytest

from onecurve.coordination.entry import MAX_VALUE_BYTES, Change
from onecurve.coordination.errors import CoordinationError, LeaseLostError
from onecurve.coordination.watch import Watch


async def follow(watch: Watch, count: int) -> list[Change]:
    """The next `count` changes of a watch."""
    changes: list[Change] = []
    while len(changes) < count:
        changes += await anext(watch)
    return changes


def test_of_many_hosts_that_create_a_key_one_succeeds(backend):
    async def scenario(connect):
        clients = [await connect() for _ in range(5)]
        created = await asyncio.gather(*(client.create("leader", f"host {n}") for n, client in enumerate(clients)))
        assert sum(created) == 1
        entry = await clients[0].get("leader")
        assert entry.value == f"host {created.index(True)}"

    backend.run(scenario)


def test_only_the_first_compare_and_set_of_a_version_succeeds(backend):
    async def scenario(connect):
        clients = [await connect() for _ in range(4)]
        await clients[0].create("generation", "0")
        version = (await clients[0].get("generation")).version
        written = await asyncio.gather(*(client.compare_and_set("generation", version, "1") for client in clients))
        assert sum(written) == 1
        entry = await clients[1].get("generation")
        assert entry.value == "1"
        assert entry.version > version

    backend.run(scenario)


def test_a_key_that_was_deleted_and_created_again_does_not_have_its_old_version(backend):
    async def scenario(connect):
        client = await connect()
        await client.create("generation", "0")
        version = (await client.get("generation")).version
        assert await client.delete("generation")
        assert not await client.delete("generation")
        assert await client.get("generation") is None
        assert not await client.compare_and_set("generation", version, "1")
        assert not await client.compare_and_set("generation", 0, "1")
        await client.create("generation", "0")
        assert not await client.compare_and_set("generation", version, "1")

    backend.run(scenario)


def test_put_overwrites_whatever_is_there(backend):
    async def scenario(connect):
        one, other = await connect(), await connect()
        await one.put("report", "first")
        await other.put("report", "")
        assert (await one.get("report")).value == ""
        await one.put("report", 'text "with" \\ quotes, line\nbreaks, é and 漢')
        assert (await other.get("report")).value == 'text "with" \\ quotes, line\nbreaks, é and 漢'

    backend.run(scenario)


def test_a_watch_reports_the_present_keys_and_then_every_change_in_order(backend):
    async def scenario(connect):
        writer, reader = await connect(), await connect()
        await writer.put("hosts/b", "1")
        await writer.put("hosts/a", "2")
        await writer.put("other", "x")
        watch = await reader.watch("hosts/")
        assert [(change.key, change.value) for change in await anext(watch)] == [("hosts/a", "2"), ("hosts/b", "1")]
        for number in range(50):
            await writer.put(f"hosts/{number % 3}", str(number))
            await writer.put("hosting", "not watched")
        await writer.delete("hosts/a")
        changes = await follow(watch, 51)
        expected = [(f"hosts/{number % 3}", str(number)) for number in range(50)]
        assert [(change.key, change.value) for change in changes] == [*expected, ("hosts/a", None)]
        versions = [change.version for change in changes]
        assert versions == sorted(set(versions))
        assert versions[-2] == (await reader.get(changes[-2].key)).version

    backend.run(scenario)


def test_a_watch_of_an_absent_key_begins_with_an_empty_list(backend):
    async def scenario(connect):
        client = await connect()
        watch = await client.watch("assignments/7/host-1")
        assert await anext(watch) == []
        await client.put("assignments/7/host-1", "rank 0")
        assert [change.value for change in await anext(watch)] == ["rank 0"]

    backend.run(scenario)


def test_a_closed_watch_ends_its_iteration(backend):
    async def scenario(connect):
        client = await connect()
        watch = await client.watch("hosts/")
        assert await anext(watch) == []
        reading = asyncio.create_task(anext(watch, None))
        await asyncio.sleep(0.05)
        watch.close()
        assert await reading is None
        await client.put("hosts/a", "1")
        assert await anext(watch, None) is None

    backend.run(scenario)


def test_closing_a_lease_deletes_its_keys_and_no_others(backend):
    async def scenario(connect):
        client, reader = await connect(), await connect()
        lease = await client.lease(backend.lease_seconds)
        await client.create("hosts/a", "1", lease)
        await client.put("hosts/b", "1", lease)
        await client.put("hosts/b", "2")  # belongs to no lease any more
        await client.create("hosts/c", "1", lease)
        await client.compare_and_set("hosts/c", (await client.get("hosts/c")).version, "2")  # keeps its lease
        watch = await reader.watch("hosts/")
        assert len(await anext(watch)) == 3
        await lease.close()
        assert {(change.key, change.value) for change in await follow(watch, 2)} == {
            ("hosts/a", None),
            ("hosts/c", None),
        }
        assert (await client.get("hosts/b")).value == "2"

    backend.run(scenario)


def test_a_lease_lives_while_its_owner_does_and_expires_without_it(backend):
    async def scenario(connect):
        owner, reader = await connect(), await connect()
        lease = await owner.lease(backend.lease_seconds)
        await owner.create("hosts/a", "1", lease)
        watch = await reader.watch("hosts/")
        assert len(await anext(watch)) == 1
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(watch), 1.5 * backend.lease_seconds)
        assert not lease.lost.is_set()
        watch = await reader.watch("hosts/")
        assert len(await anext(watch)) == 1
        start = time.monotonic()
        await lease.abandon()
        assert [change.value for change in await anext(watch)] == [None]
        assert backend.lease_seconds / 2 < time.monotonic() - start < backend.lease_seconds + 6

    backend.run(scenario)


def test_nothing_is_written_under_a_lease_that_has_ended(backend):
    async def scenario(connect):
        client = await connect()
        lease = await client.lease(backend.lease_seconds)
        await lease.close()
        with pytest.raises(LeaseLostError, match="'hosts/a' was not written: its lease has expired"):
            await client.create("hosts/a", "1", lease)
        with pytest.raises(LeaseLostError):
            await client.put("hosts/a", "1", lease)
        assert await client.get("hosts/a") is None

    backend.run(scenario)


@pytest.mark.parametrize("key", ["", "k" * 257, "two words", "line\nbreak", "é"])
def test_keys_outside_the_limits_are_refused(backend, key):
    async def scenario(connect):
        client = await connect()
        for call in (client.create(key, "1"), client.put(key, "1"), client.get(key), client.delete(key)):
            with pytest.raises(CoordinationError, match="key"):
                await call

    backend.run(scenario)


def test_the_largest_value_passes_and_a_larger_one_is_refused(backend):
    async def scenario(connect):
        client = await connect()
        value = "é" * (MAX_VALUE_BYTES // 2 - 1) + '"\n'
        watch = await client.watch("plan")
        assert await anext(watch) == []
        await client.put("plan", value)
        assert (await client.get("plan")).value == value
        assert (await anext(watch))[0].value == value
        with pytest.raises(CoordinationError, match="has 1,000,001 bytes; the limit is 1,000,000"):
            await client.put("plan", value + "x")
        with pytest.raises(CoordinationError, match="not valid Unicode"):
            await client.put("plan", "\ud800")

    backend.run(scenario)


def test_many_writers_lose_no_increment(backend):
    async def increment(client):
        while True:
            entry = await client.get("counter")
            if await client.compare_and_set("counter", entry.version, str(int(entry.value) + 1)):
                return

    async def scenario(connect):
        clients = [await connect() for _ in range(4)]
        await clients[0].create("counter", "0")
        await asyncio.gather(*(increment(client) for client in clients for _ in range(5)))
        assert (await clients[0].get("counter")).value == "20"

    backend.run(scenario)
