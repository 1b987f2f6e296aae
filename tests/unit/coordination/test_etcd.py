"""etcd's own failures: lost answers, late writes, compaction, passwords, a leader that dies."""

import asyncio
import secrets
import socket
import threading
import time
from contextlib import closing

import pytest

from coordination_services import TIMEOUT, EtcdCluster, free_ports, running_etcd
from onecurve.coordination.entry import Change
from onecurve.coordination.errors import CoordinationError, UnreachableError
from onecurve.coordination.etcd import EtcdCoordination
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.coordination.etcd_entry import encode
from onecurve.coordination.etcd_gateway import EtcdError, EtcdGateway


def opened(etcd: EtcdCluster, timeout: float = TIMEOUT) -> EtcdCoordination:
    return EtcdCoordination(etcd.address(), secrets.token_hex(4), timeout)


class LosingGateway(EtcdGateway):
    """A gateway that loses the answers to the next `lose` transactions, and keeps the last one to send it late."""

    lose = 0
    last: tuple = ()

    def meanwhile(self):
        """What happens between the attempt whose answer is lost and the next one."""

    def _call_once(self, current, path, body, seconds):
        answer = super()._call_once(current, path, body, seconds)
        if path == "/v3/kv/txn":
            self.last = (path, body)
            if self.lose:
                self.lose -= 1
                self.meanwhile()
                raise TimeoutError("the answer was lost")
        return answer


def losing(etcd: EtcdCluster) -> tuple[EtcdCoordination, LosingGateway]:
    client = opened(etcd)
    client._gateway = LosingGateway(etcd.address(), TIMEOUT)
    return client, client._gateway


def test_a_write_whose_answer_was_lost_is_recognized(etcd):
    async def scenario():
        client, gateway = losing(etcd)
        gateway.lose = 2
        assert await client.create("leader", "me")
        version = (await client.get("leader")).version
        gateway.lose = 1
        assert await client.compare_and_set("leader", version, "still me")
        gateway.lose = 1
        await client.put("leader", "me again")
        assert (await client.get("leader")).value == "me again"
        gateway.lose = 1
        assert await client.delete("leader")
        await client.close()

    asyncio.run(scenario())


def test_a_write_that_was_replaced_before_its_answer_was_lost_counts_as_not_done(etcd):
    async def scenario():
        client, gateway = losing(etcd)
        await client.create("generation", "1")
        version = (await client.get("generation")).version
        gateway.lose = 1
        replacement = {"key": encode(f"{client._namespace}generation"), "value": encode("token 3")}
        gateway.meanwhile = lambda: gateway.call("/v3/kv/put", replacement)
        assert not await client.compare_and_set("generation", version, "2")
        assert (await client.get("generation")).value == "3"
        await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("operation", ["put", "compare_and_set", "delete"])
def test_an_attempt_that_etcd_carries_out_late_changes_nothing(etcd, operation):
    async def scenario():
        client, gateway = losing(etcd)
        await client.put("generation", "1")
        match operation:
            case "put":
                await client.put("generation", "2")
            case "compare_and_set":
                await client.compare_and_set("generation", (await client.get("generation")).version, "2")
            case "delete":
                await client.delete("generation")
        late = gateway.last
        await client.put("generation", "3")
        before = await client.get("generation")
        gateway.call(*late)
        assert await client.get("generation") == before
        await client.close()

    asyncio.run(scenario())


def test_a_watch_survives_a_cut_stream_and_a_compaction_without_a_gap(etcd):
    async def scenario():
        client, writer = opened(etcd), opened(etcd)
        writer._namespace = client._namespace
        watch = await client.watch("hosts/")
        [watcher] = (thread for thread in threading.enumerate() if thread.name == "etcd watch hosts/")
        assert await anext(watch) == []
        seen: list[Change] = []
        for number in range(30):
            await writer.put("hosts/a", str(number))
            if number % 10 == 5:
                watcher._stream.interrupt()
        while len(seen) < 30:
            seen += await anext(watch)
        assert [change.value for change in seen] == [str(number) for number in range(30)]

        # As if the stream had been away for long: what it would go on from is compacted.
        await writer.put("hosts/b", "1")
        await anext(watch)
        await writer.delete("hosts/a")
        await anext(watch)
        await writer.put("hosts/c", "1")
        version = (await writer.get("hosts/c")).version
        await anext(watch)
        watcher._revision = 1
        writer._gateway.call("/v3/kv/compaction", {"revision": str(version)})
        watcher._stream.interrupt()
        await writer.put("hosts/b", "2")
        assert [(change.key, change.value) for change in await anext(watch)] == [("hosts/b", "2")]
        await client.close()
        await writer.close()

    asyncio.run(scenario())


def test_a_member_that_does_not_answer_is_replaced_by_the_next(etcd):
    async def scenario():
        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            [nobody] = free_ports(1)
            ports = [silent.getsockname()[1], nobody, *etcd.ports]
            address = EtcdAddress.parse("etcd://" + ",".join(f"127.0.0.1:{port}" for port in ports), {})
            client = EtcdCoordination(address, "failover", TIMEOUT)
            await client.put("hosts/a", "1")
            start = time.monotonic()
            watch = await client.watch("hosts/")
            assert len(await anext(watch)) == 1
            await client.put("hosts/a", "2")
            assert len(await anext(watch)) == 1
            assert time.monotonic() - start < 10
            await client.close()

    asyncio.run(scenario())


def test_an_etcd_that_does_not_answer_is_named():
    async def scenario():
        address = EtcdAddress.parse(f"etcd://127.0.0.1:{free_ports(1)[0]}", {})
        client = EtcdCoordination(address, "nobody", timeout=0.5)
        with pytest.raises(UnreachableError, match=rf"{address} did not answer host '.*' within 0.5 s .*members run"):
            await client.get("leader")
        watch = await client.watch("hosts/")
        with pytest.raises(UnreachableError):
            await anext(watch)
        await client.close()

    asyncio.run(scenario())


def test_a_password_is_used_and_never_shown(tmp_path, caplog):
    with running_etcd(tmp_path, 1) as cluster, closing(EtcdGateway(cluster.address(), TIMEOUT)) as gateway:
        gateway.call("/v3/auth/user/add", {"name": "root", "password": "secret-word"})
        gateway.call("/v3/auth/role/add", {"name": "root"})
        gateway.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        gateway.call("/v3/auth/enable", {})
        url = str(cluster.address())

        async def scenario():
            client = EtcdCoordination(EtcdAddress.parse(url, {"ETCDCTL_USER": "root:secret-word"}), "job", TIMEOUT)
            lease = await client.lease(2.0)
            assert await client.create("hosts/a", "1", lease)
            watch = await client.watch("hosts/")
            assert len(await anext(watch)) == 1
            client._gateway._token = "expired.1"  # tokens expire; a new one is asked for
            await client.put("hosts/a", "2")
            assert [change.value for change in await anext(watch)] == ["2"]
            await client.close()
            stranger = EtcdCoordination(EtcdAddress.parse(url, {}), "job", TIMEOUT)
            with pytest.raises(EtcdError, match="set ETCDCTL_USER=name:password in the environment"):
                await stranger.get("hosts/a")
            await stranger.close()
            wrong = EtcdCoordination(EtcdAddress.parse(url, {"ETCDCTL_USER": "root:other-word"}), "job", TIMEOUT)
            with pytest.raises(EtcdError) as raised:
                await wrong.get("hosts/a")
            assert "other-word" not in str(raised.value)
            await wrong.close()

        asyncio.run(scenario())
    assert "the password is sent without encryption; use etcds:// for TLS" in caplog.text
    assert "secret-word" not in caplog.text


def test_tls_is_verified(tmp_path):
    with running_etcd(tmp_path, 1, tls=True) as cluster:

        async def scenario():
            client = EtcdCoordination(cluster.address(), "job", TIMEOUT)
            watch = await client.watch("hosts/")
            assert await anext(watch) == []
            await client.put("hosts/a", "1")
            assert [change.value for change in await anext(watch)] == ["1"]
            await client.close()
            stranger = EtcdCoordination(EtcdAddress.parse(cluster.url(), {}), "job", TIMEOUT)
            with pytest.raises(CoordinationError, match=r"not trusted \(self.signed certificate\): set ETCDCTL_CACERT"):
                await stranger.get("hosts/a")
            await stranger.close()

        asyncio.run(scenario())


@pytest.mark.slow
def test_no_write_and_no_change_is_lost_when_the_leader_of_etcd_dies(tmp_path):
    """Three members; the leader is killed while two hosts increment a counter and a third watches it."""
    with running_etcd(tmp_path, 3) as cluster:

        async def increment(client, stop):
            done = 0
            while not stop.is_set():
                entry = await client.get("counter")
                done += await client.compare_and_set("counter", entry.version, str(int(entry.value) + 1))
            return done

        async def scenario():
            clients = [EtcdCoordination(cluster.address(), "job", TIMEOUT) for _ in range(3)]
            await clients[0].create("counter", "0")
            lease = await clients[0].lease(8.0)
            await clients[0].create("hosts/a", "1", lease)
            watch = await clients[2].watch("counter")
            values = [change.value for change in await anext(watch)]
            stop = asyncio.Event()
            writers = [asyncio.create_task(increment(client, stop)) for client in clients[:2]]
            await asyncio.sleep(1)
            leader = await asyncio.to_thread(cluster.leader)
            cluster.members[leader].kill()
            killed = int((await clients[2].get("counter")).value)
            while int((await clients[2].get("counter")).value) < killed + 20:
                await asyncio.sleep(0.1)
            stop.set()
            done = sum(await asyncio.gather(*writers))
            total = int((await clients[0].get("counter")).value)
            assert total >= done, "an increment that the other host has seen and replaced may count as not done"
            while values[-1] != str(total):
                values += [change.value for change in await anext(watch)]
            assert values == [str(number) for number in range(total + 1)]
            assert not lease.lost.is_set()
            assert await clients[1].get("hosts/a") is not None
            for client in clients:
                await client.close()

        asyncio.run(asyncio.wait_for(scenario(), 120))


def test_the_namespace_of_a_job_is_its_own(etcd):
    async def scenario():
        one, other = opened(etcd), opened(etcd)
        await one.put("leader", "me")
        assert await other.get("leader") is None
        raw = one._gateway.call("/v3/kv/range", {"key": encode(f"{one._namespace}leader")})
        assert len(raw["kvs"]) == 1
        await one.close()
        await other.close()

    asyncio.run(scenario())
