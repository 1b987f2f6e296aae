"""The ranks' store does what torch's stores do, for those who know its key only."""

import asyncio
import secrets
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from onecurve.coordination.errors import JobKeyError
from onecurve.coordination.store_server import StoreServer
from onecurve.launch.failure_report import lost_connection
from onecurve.launch.rank_store import RankStore

KEY = secrets.token_bytes(32)
SHORT = timedelta(seconds=0.2)


class ServedStore:
    """A server in a thread of this process."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))
        self._thread.start()
        self._started.wait()

    async def _serve(self) -> None:
        self.loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        self.server = StoreServer(self._listener, KEY)
        self.server.start()
        self._started.set()
        await self._stop.wait()
        await self.server.close()

    def stop(self) -> None:
        with suppress(RuntimeError):  # it has ended already
            self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()


@pytest.fixture
def served() -> Iterator[ServedStore]:
    served = ServedStore()
    yield served
    served.stop()


@pytest.fixture
def connect(served: ServedStore) -> Iterator[Callable[[], RankStore]]:
    stores: list[RankStore] = []

    def new(key: bytes = KEY) -> RankStore:
        stores.append(RankStore("127.0.0.1", served.port, key))
        return stores[-1]

    yield new
    for store in stores:
        store.close()


def use(store: dist.Store) -> list[object]:
    """What a sequence of operations returns; the same for every store."""
    store.set("a", "1")
    store.set("b", b"\x00\xff=")
    found: list[object] = [store.get("a"), store.get("b"), store.add("n", 3), store.add("n", -1), store.get("n")]
    found += [store.compare_set("c", "", "x"), store.compare_set("c", "y", "z"), store.compare_set("c", "x", "z")]
    found += [store.check(["a", "c"]), store.check(["a", "q"]), store.delete_key("a"), store.delete_key("a")]
    store.wait(["b", "c"])
    return found


def test_it_answers_like_torchs_store(connect) -> None:
    assert use(connect()) == use(dist.HashStore())
    assert use(dist.PrefixStore("p", connect())) == use(dist.HashStore())


def test_a_key_that_another_rank_sets_ends_the_wait(connect) -> None:
    one, other = connect(), connect()
    timer = threading.Timer(0.2, lambda: other.set("late", "x"))
    timer.start()
    assert one.get("late") == b"x"
    timer.join()


def test_threads_of_a_rank_wait_for_each_other(connect) -> None:
    store, got = connect(), []
    waiting = threading.Thread(target=lambda: got.append(store.get("k")))
    waiting.start()
    store.set("k", "v")
    waiting.join(10)
    assert got == [b"v"]


def test_a_wait_ends_after_its_time_and_leaves_nothing(connect, served: ServedStore) -> None:
    store = connect()
    with pytest.raises(dist.DistStoreError, match=r"'never'.*after 0\.2 s"):
        store.wait(["never"], SHORT)
    assert store.add("n", 1) == 1
    assert not served.server._waiting


def test_another_key_is_refused(connect) -> None:
    with pytest.raises(JobKeyError):
        connect(secrets.token_bytes(32)).set("a", "1")


def test_a_lost_server_is_a_consequence_not_a_cause(connect, served: ServedStore) -> None:
    store = connect()
    store.set("a", "1")
    threading.Timer(0.2, served.stop).start()
    with pytest.raises(dist.DistNetworkError) as caught:
        store.get("never")
    assert lost_connection(caught.value)
    with pytest.raises(dist.DistNetworkError):
        store.set("a", "2")


def test_a_rank_that_leaves_is_forgotten(connect, served: ServedStore) -> None:
    store = connect()

    def get() -> None:
        with pytest.raises(dist.DistNetworkError):
            store.get("never")

    waiting = threading.Thread(target=get)
    with closing(store):
        waiting.start()
        while not served.server._waiting:
            pass
    waiting.join(10)
    assert not waiting.is_alive()
    deadline = threading.Event()
    while served.server._waiting or served.server.connections:
        assert not deadline.wait(0.01)


def test_gloo_connects_through_it(connect) -> None:
    stores, sums = [connect(), connect()], [0.0, 0.0]

    def join(rank: int) -> None:
        group = dist.ProcessGroupGloo(stores[rank], rank, 2, timedelta(seconds=30))
        value = torch.tensor([rank + 1.0])
        group.allreduce([value]).wait()
        sums[rank] = value.item()

    threads = [threading.Thread(target=join, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert sums == [3.0, 3.0]
