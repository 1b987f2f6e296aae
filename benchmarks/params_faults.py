"""Faults of row servers and ranks, replayed from a seed: does the training compute the same, and how long does it wait?

`python benchmarks/params_faults.py SCENARIO --seed 1 --count 10 --json`

A real etcd, servers started by `onecurve serve` on addresses of the loopback device, and a run of two ranks:
- `kill`: one of three servers is killed; in every third run while a fourth one has just come and slots move.
- `stop`: one of three servers is stopped by SIGSTOP for 1 to 6 seconds.
- `partition`: one of three servers, each on an emulated host of its own, is cut off for 1 to 6 seconds; needs root.
- `etcd`: the leader of three members of etcd and one of three servers are killed at once. `etcd_alone`: etcd is stopped
  for 2 to 8 seconds, and nothing else: the leases of servers have 3.
- `join`: a third server comes. `leave`: one of three gets SIGTERM and hands its rows over.
- `rank`: one of the two ranks is killed, and the run goes on. `ranks`: the run is killed, and started again. `all`: the
  servers too, and then there are three instead of two.

`identical` counts the runs whose weights and rows, with their optimizer states, are bit-equal to those of a run without
faults. A pause is the longest step after the fault minus the median step. `shares`: the smallest and largest part of
the slots that a server has at the end of `join` and `leave`. `p99_ratio`: the 99th percentile of a step's time over
that of the undisturbed run. `--staleness 2`: rows lack the updates of two steps. `--break backup`: servers that confirm
pushes before their backups have them; a run that fails or hangs counts as one that is not identical.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import torch
from logged_process import LoggedProcess
from namespaces import Host, emulated_hosts
from safetensors.torch import load_file
from watched_run import WatchedRun, children

from onecurve.checkpoint.loader import Checkpoint
from onecurve.checkpoint.local_store import LocalStore
from onecurve.checkpoint.stored_rows import read_rows
from onecurve.coordination.etcd import EtcdCoordination
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.describe.slots import SLOTS
from onecurve.params.view import View
from onecurve.params.view_changes import slots_by_server
from onecurve.servers.settings import compile_kernels
from onecurve.servers.view_follower import VIEW_KEY, decoded_view

HERE = Path(__file__).parent
_JOB, _PORT = HERE / "params_job.py", 23790
_STEPS, _EVERY = 400, 50
_START_SECONDS = 60.0
_PATIENCE = 60.0


@dataclass
class Found:
    scenario: str
    runs: int = 0
    identical: int = 0
    pauses: list[float] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    p99_ratios: list[float] = field(default_factory=list)

    def plain(self) -> dict[str, Any]:
        found: dict[str, Any] = {"scenario": self.scenario, "runs": self.runs, "identical": self.identical}
        if self.pauses:
            found["median_pause_ms"] = round(1000 * statistics.median(self.pauses))
            found["worst_pause_ms"] = round(1000 * max(self.pauses))
        if self.shares:
            found["shares"] = [round(min(self.shares), 3), round(max(self.shares), 3)]
        if self.p99_ratios:
            found["p99_ratio"] = round(max(self.p99_ratios), 2)
        return found


class Lab:
    """An etcd, and servers that are kept from one run to the next.

    They are on this host, or on emulated ones: etcd and the ranks on the first, and each server on one of the others.
    """

    def __init__(
        self, folder: Path, is_broken: bool, staleness: int, members: int = 1, hosts: Sequence[Host] = ()
    ) -> None:
        self.folder, self._is_broken, self._staleness, self._hosts = folder, is_broken, staleness, hosts
        host = hosts[0].address if hosts else "127.0.0.1"
        self._clients = [f"{host}:{_PORT + 2 * number}" for number in range(members)]
        self._peers = [f"http://{host}:{_PORT + 2 * number + 1}" for number in range(members)]
        self.members = [self._start_member(number) for number in range(members)]
        self.address = f"etcd://{','.join(self._clients)}/bench"
        if hosts:
            make_certificates(folder)
        self.servers: list[LoggedProcess] = []
        self._places: dict[LoggedProcess, int] = {}
        """The numbers of the emulated hosts that servers are on."""
        self._number = 1
        self._runs = 0

    def _start_member(self, number: int) -> LoggedProcess:
        client, peer = f"http://{self._clients[number]}", self._peers[number]
        cluster = ",".join(f"m{each}={url}" for each, url in enumerate(self._peers))
        words = ["etcd", "--unsafe-no-fsync", "--name", f"m{number}", "--data-dir", str(self.folder / f"m{number}")]
        words += ["--initial-cluster", cluster, "--listen-client-urls", client, "--advertise-client-urls", client]
        words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
        return LoggedProcess(self._on(0, words))

    def _on(self, host: int, words: list[str]) -> list[str]:
        return self._hosts[host].command(words) if self._hosts else words

    def leader(self) -> LoggedProcess:
        """The member that leads etcd."""
        for client, member in zip(self._clients, self.members, strict=True):
            asked = Request(f"http://{client}/v3/maintenance/status", b"{}", method="POST")
            with urlopen(asked, timeout=5) as answer:
                status = json.load(answer)
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise SystemExit("etcd has no leader")

    def restart_members(self) -> None:
        """Start those again that have ended."""
        self.members = [
            member if member.process.poll() is None else self._start_member(number)
            for number, member in enumerate(self.members)
        ]

    def have(self, count: int) -> None:
        """Have so many servers that live."""
        self.servers = [server for server in self.servers if server.process.poll() is None]
        while len(self.servers) > count:
            self.servers.pop().close()
        new = [self.start() for _ in range(count - len(self.servers))]
        for server in new:
            wait_until(lambda server=server: "serving rows" in server.output(), server.output)

    def start(self) -> LoggedProcess:
        program = [str(HERE / "broken_server.py")] if self._is_broken else ["-m", "onecurve"]
        words = [sys.executable, *program, "serve", self.address, "--listen"]
        if self._hosts:
            taken = {self._places[server] for server in self.servers}
            number = next(each for each in range(1, len(self._hosts)) if each not in taken)
            words = self._on(number, [*words, self._hosts[number].address, "--tls", str(self.folder)])
        else:
            number, self._number = 0, self._number % 250 + 1
            words.append(f"127.0.0.{self._number + 1}")
        server = LoggedProcess(words)
        self._places[server] = number
        self.servers.append(server)
        return server

    def begin(self, steps: int = _STEPS, out: Path | None = None) -> WatchedRun:
        """Start a run of two ranks."""
        self._runs += 1
        out = out or self.folder / f"run{self._runs}"
        arguments = [f"params={self.address}", f"steps={steps}", f"every={_EVERY}", f"staleness={self._staleness}"]
        arguments += [f"tls={self.folder}"] if self._hosts else []
        launcher = self._on(0, [sys.executable]) if self._hosts else []
        return WatchedRun(_JOB, out, *arguments, "--plan", "replicate2 mb32 fp64", "--no-check", launcher=launcher)

    def cut_off(self, server: LoggedProcess, seconds: float) -> None:
        """Let nothing through to and from a server's host for some time."""
        host = self._hosts[self._places[server]]
        host.cut_off()
        time.sleep(seconds)
        host.reconnect()

    def view(self) -> View:
        async def read() -> View:
            service = EtcdCoordination(EtcdAddress.parse(self.address.rpartition("/")[0]), "bench")
            entry = await service.get(VIEW_KEY)
            await service.close()
            assert entry is not None
            return decoded_view(entry.value)

        return asyncio.run(read())

    def close(self) -> None:
        for server in self.servers:
            server.close()
        for member in self.members:
            member.close()


def make_certificates(folder: Path) -> None:
    """Write an authority and a certificate of it, as `--tls` takes them."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    for words in (
        ("req", "-x509", *curve, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=authority"),
        ("req", *curve, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=machine"),
        ("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-out", "cert.pem"),
    ):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)


def wait_until(is_true: Callable[[], bool], told: Callable[[], str], seconds: float = _START_SECONDS) -> None:
    deadline = time.time() + seconds
    while not is_true():
        if time.time() > deadline:
            raise SystemExit(f"nothing for {seconds:g} s\n{told()}")
        time.sleep(0.01)


def step_seconds(folder: Path) -> dict[int, float]:
    """By step: the seconds of the last time that it was done."""
    lines = (folder / "records" / "rank-0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {record["step"]: sum(record["seconds"].values()) for record in records if record["kind"] == "step"}


def contents(folder: Path) -> dict[str, torch.Tensor]:
    """All weights, and all rows with their states, by name and id."""
    store = LocalStore(folder / "checkpoints")
    newest = Checkpoint(store, store.names()[-1])
    found = dict(load_file(folder / "weights.safetensors"))
    for checkpoint in filter(None, (newest.rows_base(), newest)):
        for name, ids, rows, states in read_rows(checkpoint, ["user", "item"], range(SLOTS)):
            lines = torch.cat([rows, states], dim=1)
            found |= {f"{name} {number}": line for number, line in zip(ids.tolist(), lines, strict=True)}
    return found


class Reference:
    """The undisturbed run."""

    def __init__(self, lab: Lab) -> None:
        lab.have(2)
        with lab.begin() as run:
            finish(run)
        self.contents = contents(run.folder)
        self.seconds = sorted(step_seconds(run.folder).values())

    def judge(self, run: WatchedRun, found: Found, fault_step: int) -> None:
        found.runs += 1
        now = contents(run.folder)
        is_same = now.keys() == self.contents.keys() and all(
            torch.equal(now[name], value) for name, value in self.contents.items()
        )
        found.identical += is_same
        seconds = step_seconds(run.folder)
        after = [value for step, value in seconds.items() if step >= fault_step]
        found.pauses.append(max(0.0, max(after) - statistics.median(seconds.values())))
        in_order = sorted(seconds.values())
        found.p99_ratios.append(in_order[int(0.99 * len(in_order))] / self.seconds[int(0.99 * len(self.seconds))])
        shutil.rmtree(run.folder)


class RunFailedError(Exception):
    """A run has not come to its end."""


def finish(run: WatchedRun) -> None:
    status = run.end(_PATIENCE)
    if status != 0:
        what = "hangs" if status is None else f"has ended with {status}"
        raise RunFailedError(f"the run {what}\n{run.output()[-3000:]}")


def reach(run: WatchedRun, draw: random.Random) -> int:
    """Wait for a step that is drawn; return it."""
    step = draw.randrange(60, _STEPS - 120)
    if run.wait_for_step(1, step) is None:
        raise SystemExit(run.output())
    time.sleep(draw.random() / 50)
    return step


def kill(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.have(3)
    with lab.begin() as run:
        if found.runs % 3 == 2:
            if run.wait_for_step(1, 20) is None:
                raise SystemExit(run.output())
            server = lab.start()
            wait_until(lambda: "serving rows" in server.output(), server.output)
            step = max(run.records.steps(1))
            time.sleep(draw.random() / 5)
        else:
            step = reach(run, draw)
        draw.choice(lab.servers).process.kill()
        finish(run)
    reference.judge(run, found, step)


def stop(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.have(3)
    with lab.begin() as run:
        step = reach(run, draw)
        pid = draw.choice(lab.servers).process.pid
        os.kill(pid, signal.SIGSTOP)
        time.sleep(draw.uniform(1, 6))
        os.kill(pid, signal.SIGCONT)
        finish(run)
    reference.judge(run, found, step)


def partition(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.have(3)
    with lab.begin() as run:
        step = reach(run, draw)
        lab.cut_off(draw.choice(lab.servers), draw.uniform(1, 6))
        finish(run)
    reference.judge(run, found, step)


def etcd(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.restart_members()
    lab.have(3)
    with lab.begin() as run:
        step = reach(run, draw)
        victims = lab.leader(), draw.choice(lab.servers)
        for victim in victims:
            victim.process.kill()
        finish(run)
    reference.judge(run, found, step)


def etcd_alone(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.have(3)
    with lab.begin() as run:
        step = reach(run, draw)
        (member,) = lab.members
        os.kill(member.process.pid, signal.SIGSTOP)
        time.sleep(draw.uniform(2, 8))
        os.kill(member.process.pid, signal.SIGCONT)
        finish(run)
    reference.judge(run, found, step)


def join(lab: Lab, reference: Reference, found: Found, _: random.Random) -> None:
    lab.have(2)
    with lab.begin() as run:
        if run.wait_for_step(1, 20) is None:
            raise SystemExit(run.output())
        lab.start()
        finish(run)
    note_shares(lab, found, 3)
    reference.judge(run, found, 20)


def leave(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.have(3)
    with lab.begin() as run:
        step = reach(run, draw)
        leaving = draw.choice(lab.servers)
        leaving.process.terminate()
        finish(run)
        if leaving.end(10) != 0:
            raise SystemExit(f"the server that leaves has not ended well\n{leaving.output()}")
    note_shares(lab, found, 2)
    reference.judge(run, found, step)


def note_shares(lab: Lab, found: Found, servers: int) -> None:
    def is_done() -> bool:
        view = lab.view()
        return len(view.servers) == servers and not any(piece.joining for piece in view.pieces.values())

    wait_until(is_done, lambda: str(lab.view()))
    found.shares += [slots / SLOTS for slots in slots_by_server(lab.view(), "primary").values()]


def rank(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.have(2)
    with lab.begin() as run:
        step = reach(run, draw)
        os.kill(draw.choice(run.ranks()), signal.SIGKILL)
        finish(run)
    reference.judge(run, found, step)


def ranks(lab: Lab, reference: Reference, found: Found, draw: random.Random, servers: int = 2) -> None:
    lab.have(2)
    with lab.begin() as run:
        reach(run, draw)
        kill_tree(run.process.pid)
    if servers != 2:
        lab.have(0)
        lab.have(servers)
    with lab.begin(out=run.folder) as again:
        finish(again)
    reference.judge(again, found, 0)


def everything(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    ranks(lab, reference, found, draw, servers=3)


def kill_tree(pid: int) -> None:
    below = children(pid)
    os.kill(pid, signal.SIGKILL)
    for child in below:
        kill_tree(child)


_SCENARIOS = {
    "kill": kill,
    "stop": stop,
    "partition": partition,
    "etcd": etcd,
    "etcd_alone": etcd_alone,
    "join": join,
    "leave": leave,
    "rank": rank,
    "ranks": ranks,
    "all": everything,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scenario", choices=_SCENARIOS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--count", type=int, default=10)
    parser.add_argument("--break", dest="broken", choices=["backup"], help="servers with a planted fault")
    parser.add_argument("--staleness", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found, draw = Found(chosen.scenario), random.Random(chosen.seed)
    compile_kernels()  # otherwise the first servers do it, and start late
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        hosts = stack.enter_context(emulated_hosts(4, "", [1.0] * 4)) if chosen.scenario == "partition" else []
        members = 3 if chosen.scenario == "etcd" else 1
        lab = Lab(Path(folder), chosen.broken is not None, chosen.staleness, members, hosts)
        try:
            reference = Reference(lab)
            for _ in range(chosen.count):
                try:
                    _SCENARIOS[chosen.scenario](lab, reference, found, draw)
                except RunFailedError as error:
                    found.runs += 1
                    print(error, file=sys.stderr)
                print(found.plain(), file=sys.stderr, flush=True)
        finally:
            lab.close()
    print(json.dumps(found.plain()) if chosen.json else found.plain())


if __name__ == "__main__":
    main()
