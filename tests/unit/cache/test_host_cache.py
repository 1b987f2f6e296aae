"""A host's cache with real processes: what is fetched, removed and refused, and who is killed."""

import multiprocessing
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash

from onecurve.cache.cache_counts import CacheCounts
from onecurve.cache.cache_folder import CacheFolder
from onecurve.cache.fetcher import Fetcher
from onecurve.cache.host_cache import HostCache
from onecurve.cache.remote_file import RemoteFile
from onecurve.describe.errors import OnecurveError
from onecurve.formats.file_format import BadFileError
from onecurve.formats.storage import Storage

SIZE = 100_000


class Files:
    """Files in a store, which here is a folder that is reached through fsspec; each is needed after the one before."""

    def __init__(self, folder: Path, count: int) -> None:
        folder.mkdir(exist_ok=True)
        self.contents = [random.Random(number).randbytes(SIZE) for number in range(count)]
        self.count = self.ordered = count
        self._location = f"local://{folder}"
        for number, content in enumerate(self.contents):
            (folder / f"{number}.bin").write_bytes(content)

    def file(self, number: int) -> RemoteFile:
        return RemoteFile(self._location, f"{number}.bin", SIZE, 0, xxhash.xxh3_64_intdigest(self.contents[number]))

    def next_uses(self, position: int) -> Any:
        """File n is read at positions n, n + count, n + 2 · count, …"""
        numbers = np.arange(self.count)
        return position + (numbers - position) % self.count


@pytest.fixture
def store(tmp_path: Path) -> Files:
    return Files(tmp_path / "store", 10)


def wait(until: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not until():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def opened_cache(path: Path, store: Files, files: int = 10) -> HostCache:
    cache = HostCache(str(path), files * SIZE, peers=False)
    cache.start(store, SIZE, "127.0.0.1")
    return cache


def cached(path: Path, store: Files) -> list[int]:
    folder = CacheFolder(path)
    return [number for number in range(store.count) if folder.has(store.file(number))]


def test_files_are_fetched_in_the_order_of_their_use(tmp_path: Path, store: Files) -> None:
    cache = opened_cache(tmp_path / "cache", store, files=4)
    wait(lambda: cached(tmp_path / "cache", store) == [0, 1, 2, 3])
    time.sleep(0.2)
    assert cached(tmp_path / "cache", store) == [0, 1, 2, 3], "what is needed next is not removed for what is later"
    cache.reach(2)
    wait(lambda: cached(tmp_path / "cache", store) == [2, 3, 4, 5])
    for number in (2, 3):
        with cache.files.opened(store.file(number)) as file:
            assert file.read() == store.contents[number]
    assert cache.use.store_bytes == 6 * SIZE
    with cache.files.opened(store.file(9)) as file:
        assert file.read() == store.contents[9]
    wait(lambda: cached(tmp_path / "cache", store) == [2, 3, 4, 9])  # 5 has made room for it
    with cache.files.opened(store.file(5)) as file:
        assert file.read() == store.contents[5]
    assert (cache.use.hits, cache.use.waits) == (2, 2)


def test_a_later_run_finds_the_files_and_the_folder_is_its_own(tmp_path: Path, store: Files) -> None:
    first = opened_cache(tmp_path / "cache", store)
    wait(lambda: len(cached(tmp_path / "cache", store)) == 10)
    with pytest.raises(OnecurveError, match="is used by another run on this host"):
        opened_cache(tmp_path / "cache", store)
    del first
    wait(lambda: not CacheFolder(tmp_path / "cache").has_fetcher)
    second = opened_cache(tmp_path / "cache", store)
    with second.files.opened(store.file(3)) as file:
        assert file.read() == store.contents[3]
    assert second.use.store_bytes == 0
    second.reach(1)
    time.sleep(0.8)
    assert len(cached(tmp_path / "cache", store)) == 10


def test_a_killed_fetcher_leaves_whole_files_only(tmp_path: Path) -> None:
    store = Files(tmp_path / "store", 60)
    for attempt in range(4):
        others = multiprocessing.active_children()
        cache = opened_cache(tmp_path / "cache", store, files=60)
        time.sleep(0.02 * attempt)
        (process,) = [each for each in multiprocessing.active_children() if each not in others]
        process.kill()
        process.join()
        del cache
        for path in (tmp_path / "cache" / "files").glob("??/*"):
            assert path.stat().st_size == SIZE
    last = opened_cache(tmp_path / "cache", store, files=60)
    wait(lambda: len(cached(tmp_path / "cache", store)) == 60)
    assert last.use.waits == 0
    assert list((tmp_path / "cache" / "parts").iterdir()) == []


def test_readers_do_without_a_fetcher(
    tmp_path: Path, store: Files, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("onecurve.cache.cached_files._ALONE_SECONDS", 0.2)
    cache = HostCache(str(tmp_path / "cache"), SIZE, peers=False)  # nobody has started one
    for number in (5, 6):
        with cache.files.opened(store.file(number)) as file:
            assert file.read() == store.contents[number]
    assert "nobody fetches files" in capfd.readouterr().err


def test_files_that_somebody_has_removed_are_fetched_again(tmp_path: Path, store: Files) -> None:
    cache = opened_cache(tmp_path / "cache", store)
    wait(lambda: len(cached(tmp_path / "cache", store)) == 10)
    CacheFolder(tmp_path / "cache").remove(store.file(2).key)
    CacheFolder(tmp_path / "cache").committed(store.file(3).key).write_bytes(b"short")
    for number in (2, 3):
        with cache.files.opened(store.file(number)) as file:
            assert file.read() == store.contents[number]


def test_missing_changed_and_large_files_are_named(tmp_path: Path, store: Files) -> None:
    (tmp_path / "store" / "1.bin").unlink()
    (tmp_path / "store" / "2.bin").write_bytes(bytes(SIZE))
    cache = opened_cache(tmp_path / "cache", store)
    with pytest.raises(OnecurveError, match=r"1.bin: it cannot be read"):
        cache.files.opened(store.file(1))
    with pytest.raises(BadFileError, match=r"2.bin: it was changed since it was indexed"):
        cache.files.opened(store.file(2))
    large = RemoteFile(store.file(0).location, "large.bin", 11 * SIZE, 0, 0)
    with pytest.raises(OnecurveError, match=r"large.bin: .* has no room for it"):
        cache.files.opened(large)
    with pytest.raises(OnecurveError, match="is too small: files of"):
        HostCache(str(tmp_path / "other"), SIZE, peers=False).start(store, 2 * SIZE, "127.0.0.1")
    with pytest.raises(OnecurveError, match="cannot be written"):
        HostCache("/proc/none", SIZE, peers=False)


def test_paths_in_an_index_cannot_leave_the_cache(tmp_path: Path, store: Files) -> None:
    cache = opened_cache(tmp_path / "cache", store)
    evil = RemoteFile(store.file(0).location, "../../escaped", SIZE, 0, 0)
    with pytest.raises(OnecurveError):
        cache.files.opened(evil)
    assert not (tmp_path / "escaped").exists()
    assert {path.name for path in (tmp_path / "cache").iterdir()} == {"files", "parts", "wishes", "failures", "lock"}


def host(path: Path, store: Files, control: Any) -> None:
    """A host of three, in a process of its own; reads all files in turn."""
    signal.alarm(60)
    cache = HostCache(str(path), 10 * SIZE, peers=True)
    cache.start(store, SIZE, "127.0.0.1")
    control.send(cache.card)
    cards, rank = control.recv()
    cache.meet(cards, rank)
    for number in range(10):
        with cache.files.opened(store.file(number)) as file:
            assert file.read() == store.contents[number]
    control.send((cache.use.store_bytes, cache.use.peer_bytes))
    control.recv()


@pytest.fixture
def hosts(tmp_path: Path, store: Files) -> Iterator[list[Any]]:
    context = multiprocessing.get_context("fork")
    pipes, processes = [], []
    for number in range(3):
        own, other = context.Pipe()
        processes.append(context.Process(target=host, args=(tmp_path / f"cache-{number}", store, other)))
        processes[-1].start()
        pipes.append(own)
    yield pipes
    for process in processes:
        process.kill()
        process.join()


def test_hosts_read_each_file_from_the_store_once(hosts: list[Any]) -> None:
    cards = [pipe.recv() for pipe in hosts]
    for rank, pipe in enumerate(hosts):
        pipe.send((cards, rank))
    used = [pipe.recv() for pipe in hosts]
    assert sum(store for store, _ in used) == 10 * SIZE
    assert sum(peer for _, peer in used) == 20 * SIZE
    assert sum(store > 0 for store, _ in used) >= 2, "the files have different first hosts"


def test_a_host_that_is_gone_is_passed_over(hosts: list[Any]) -> None:
    cards = [pipe.recv() for pipe in hosts]
    cards[1] = "127.0.0.1 1 " + cards[1].split()[2]  # nobody listens there
    for rank in (0, 2):
        hosts[rank].send((cards, rank))
    used = [hosts[rank].recv() for rank in (0, 2)]
    assert sum(store + peer for store, peer in used) == 20 * SIZE
    assert 10 * SIZE <= sum(store for store, _ in used) < 20 * SIZE


def fetcher(path: Path, store: Files, files: int) -> Fetcher:
    return Fetcher(CacheFolder(path), files * SIZE, store, lambda: 0, CacheCounts())


def test_a_wish_waits_while_all_room_is_being_filled(
    tmp_path: Path, store: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(Storage, "between", lambda *_: go_on.wait(20) and None)
    filler = fetcher(tmp_path / "cache", store, files=2)
    filler.step()
    filler.folder.wish(store.file(7))
    filler.step()
    assert filler.folder.failure(store.file(7)) == ""
    assert [file.path for file in filler.folder.wishes()] == ["7.bin"]
    go_on.set()


def test_an_unexpected_error_of_a_store_is_said_and_not_waited_for(
    tmp_path: Path, store: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> bytes:
        raise ValueError("never seen before")

    monkeypatch.setattr(Storage, "between", fail)
    filler = fetcher(tmp_path / "cache", store, files=2)
    filler.step()
    wait(lambda: (filler.step(), filler.folder.failure(store.file(0)))[1] != "")
    assert filler.there(store.file(0)) == -1, "other hosts do not wait for it"
    assert not filler.folder.part(store.file(0).key).exists()


def test_readers_that_look_for_a_fetcher_do_not_keep_one_from_starting(tmp_path: Path) -> None:
    folder, is_over = CacheFolder(tmp_path / "cache"), threading.Event()

    def look() -> None:
        while not is_over.is_set():
            _ = CacheFolder(tmp_path / "cache").has_fetcher

    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(200):
        folder.own().close()
    is_over.set()
