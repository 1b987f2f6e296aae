"""Real row servers: whatever happens to them, ranks get the rows that one store would have."""

import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from onecurve.coordination.errors import JobKeyError
from onecurve.coordination.local import LocalCoordination
from onecurve.coordination.server import Server as CoordinationServer
from onecurve.describe.errors import OnecurveError
from onecurve.describe.row_servers import RowServerAddress, ServerOrder
from onecurve.job.embedding import Embedding
from onecurve.job.row_optimizer import Adam, RowwiseAdagrad
from onecurve.job.row_point import StepVerdict
from onecurve.params.row_client import RowClient, RowsLostError
from onecurve.params.served_rows import ServedRows
from onecurve.params.slots import SLOTS
from onecurve.params.step_log import ReadyStep, RowCrew
from onecurve.params.table_holder import Gradients
from onecurve.params.view import View
from onecurve.params.view_changes import slots_by_server
from onecurve.servers.encryption import client_context
from onecurve.servers.greeting import Greeting, connect_rank
from onecurve.servers.rank_servers import RankServers
from onecurve.servers.settings import RowSettings, TableSettings
from onecurve.servers.view_follower import SERVERS_PREFIX

TABLES = [Embedding("item", 8, Adam()), Embedding("user", 4, RowwiseAdagrad())]
SETTINGS = RowSettings([TableSettings.of(table) for table in TABLES], seed=3, dtype="float64")
RANKS, IDS = 2, 500
SNAPSHOTS = 7
"""Ranks may go back to multiples of this number."""


class Servers:
    """Row servers on this machine, and the service through which they agree."""

    def __init__(self) -> None:
        self.key = secrets.token_bytes(32)
        self._loop = asyncio.new_event_loop()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self.address = RowServerAddress(f"127.0.0.1:{self._do(self._start_coordination())}", self.key.hex())

    async def _start_coordination(self) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        self._server = CoordinationServer(listener, self.key)
        self._server.start()
        self.coordination = LocalCoordination(self._server.state, self._server.clock)
        return listener.getsockname()[1]

    def _do(self, work):
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def start(self, *names: str) -> None:
        for name in names:
            order = ServerOrder(name=name, machine=name, listen="127.0.0.1", address=self.address)
            process = subprocess.Popen(
                [sys.executable, "-m", "onecurve.servers.row_process"],
                stdin=subprocess.PIPE,
            )
            assert process.stdin is not None
            process.stdin.write(json.dumps(asdict(order)).encode() + b"\n")
            process.stdin.close()
            self._processes[name] = process
        for name in names:
            while self._do(self.coordination.get(SERVERS_PREFIX + name)) is None:
                assert self._processes[name].poll() is None
                time.sleep(0.02)

    def begin(self, *names: str) -> None:
        """Start servers, and divide the slots among them."""
        self.start(*names)
        with self.reached() as servers:
            servers.begin_anew()

    def reached(self) -> RankServers:
        """The servers as a rank reaches them."""
        return RankServers(self.address, SETTINGS)

    def send(self, name: str, number: int) -> None:
        os.kill(self._processes[name].pid, number)

    def view(self) -> View:
        with self.reached() as servers:
            return servers.current()

    def close(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()
        self._do(self._server.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


@pytest.fixture
def servers() -> Iterator[Servers]:
    with contextlib.closing(Servers()) as started:
        yield started


def gradients(step: int, rank: int) -> Gradients:
    draw = torch.Generator().manual_seed(100 * step + rank)
    ids = torch.randperm(IDS, generator=draw)[:60]
    lines = torch.randn(60, 8, dtype=torch.float64, generator=draw)
    return {"item": (ids, lines), "user": (ids[:30], lines[:30, :4].contiguous())}


def verdict(step: int) -> StepVerdict:
    return StepVerdict(factor=0.5, lr_factor=1 / step, is_skipped=step % 7 == 3)


def train(servers: Servers, crew: RowCrew, until: int, at_step: Callable[[int], None] = lambda _: None) -> list[float]:
    """Train with all ranks; return the longest time that each step has taken."""
    meeting = threading.Barrier(RANKS, timeout=60)
    reference = ServedRows(range(SLOTS), SETTINGS.new_stores())
    for step in range(1, crew.start + 1):
        reference.add(ReadyStep(step, tuple(gradients(step, rank) for rank in range(RANKS)), verdict(step)))
    seconds: list[float] = []

    def rank(number: int) -> None:
        name = f"rank{number}-{crew.number}"
        with servers.reached() as reached:
            client = RowClient(name, number, crew, reached, lambda address: reached.connect(address, name))
            for before in range(max(1, crew.start - 1), crew.start + 1):
                client.decide(before, verdict(before))
            client.points = (crew.start,)
            for step in range(crew.start + 1, until + 1):
                begin = time.monotonic()
                ids = {table: part[0] for table, part in gradients(step, number).items()}
                rows = client.pull(step, ids)
                meeting.wait()
                for table, wanted in reference.get(ids).items():
                    assert torch.equal(rows[table], wanted), f"step {step}, table {table}"
                squares = client.push(step, gradients(step, number))
                meeting.wait()
                if number == 0:
                    parts = [gradients(step, each) for each in range(RANKS)]
                    assert squares is not None
                    assert torch.equal(squares, reference.squares(step, parts))
                    reference.add(ReadyStep(step, tuple(parts), verdict(step)))
                    seconds.append(time.monotonic() - begin)
                    at_step(step)
                client.decide(step, verdict(step))
                if step % SNAPSHOTS == 0:
                    client.points = (*client.points[-1:], step)
                meeting.wait()
            everything = {table.table: torch.arange(IDS) for table in TABLES}
            for table, found in client.pull(until + 1, everything).items():
                assert torch.equal(found, reference.stores[table].get(torch.arange(IDS))), f"table {table}"
            client.close()

    with ThreadPoolExecutor(RANKS) as pool:
        for done in [pool.submit(rank, number) for number in range(RANKS)]:
            done.result(120)
    return seconds


def test_rows_are_those_of_one_store(servers: Servers) -> None:
    servers.begin("a", "b")
    train(servers, RowCrew(1, RANKS), 12)


def test_a_server_is_killed(servers: Servers) -> None:
    servers.begin("a", "b", "c")

    def kill(step: int) -> None:
        if step == 10:
            servers.send("b", signal.SIGKILL)

    seconds = train(servers, RowCrew(1, RANKS), 60, kill)
    assert max(seconds) < 4, seconds
    assert set(servers.view().servers) == {"a", "c"}


def test_a_server_that_comes_gets_its_share(servers: Servers) -> None:
    servers.begin("a", "b")
    train(servers, RowCrew(1, RANKS), 42, lambda step: servers.start("c") if step == 5 else None)
    deadline = time.time() + 20
    while any(piece.joining for piece in servers.view().pieces.values()) or servers.view().epoch < 5:
        assert time.time() < deadline, servers.view()
        time.sleep(0.1)
    for place in ("primary", "backup"):
        assert all(abs(slots / SLOTS - 1 / 3) < 0.0167 for slots in slots_by_server(servers.view(), place).values())
    train(servers, RowCrew(2, RANKS, start=42), 49)
    servers.send("a", signal.SIGKILL)
    train(servers, RowCrew(3, RANKS, start=49), 60)


def test_ranks_start_again_from_an_earlier_step(servers: Servers) -> None:
    servers.begin("a", "b")
    train(servers, RowCrew(1, RANKS), 12)
    train(servers, RowCrew(2, RANKS, start=7), 16)
    train(servers, RowCrew(3, RANKS, start=14), 18)
    with pytest.raises(RowsLostError, match="no server can go back to row step 9"):
        train(servers, RowCrew(4, RANKS, start=9), 11)


def test_a_service_that_does_not_answer_is_said() -> None:
    address = RowServerAddress.of_etcd("etcd://127.0.0.1:1/nobody", "")
    expected = pytest.raises(
        OnecurveError, match=r"the row servers cannot be reached: etcd://127\.0\.0\.1:1 did not answer"
    )
    with RankServers(address, RowSettings.of([], 0, torch.float64)) as servers, expected:
        servers.begin_anew()


def test_strangers_are_refused_and_serving_continues(servers: Servers) -> None:
    servers.begin("a", "b")
    address = servers.view().servers["a"].address
    for raw in (b"", b"garbage" * 100, secrets.token_bytes(5_000)):
        host, _, port = address.rpartition(":")
        with socket.create_connection((host, int(port))) as connected:
            connected.sendall(raw)
    with pytest.raises(JobKeyError):
        connect_rank(address, secrets.token_bytes(32), Greeting("rank0"))
    with connect_rank(address, servers.key, Greeting("rank9")) as connected:
        connected.sendall(b"no frame" * 10)
        assert connected.recv(1) == b""
    train(servers, RowCrew(1, RANKS), 4)


def certificates(folder: Path) -> str:
    """A folder with a certificate authority of its own, and a certificate of it."""
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *curve, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=authority")
    openssl("req", *curve, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=machine")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-out", "cert.pem")
    return str(folder)


def test_with_tls_both_sides_show_a_certificate_of_the_same_authority(servers: Servers, tmp_path: Path) -> None:
    servers.address = replace(servers.address, tls=certificates(tmp_path / "own"))
    servers.begin("a", "b")
    train(servers, RowCrew(1, RANKS), 7)
    where = servers.view().servers["a"].address
    others = client_context(certificates(tmp_path / "other"))
    with pytest.raises(OSError):  # noqa: PT011  it depends on who notices it first
        connect_rank(where, servers.key, Greeting("rank0"), others)
    with pytest.raises(OSError):  # noqa: PT011
        connect_rank(where, servers.key, Greeting("rank0"))
    train(servers, RowCrew(2, RANKS, start=7), 9)
