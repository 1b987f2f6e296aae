"""Faults of row servers and ranks, replayed from a seed: does the training compute the same, and how long does it wait?

`python benchmarks/params_faults.py SCENARIO --seed 1 --count 10 --json`

A real etcd, servers started by `onecurve serve` on addresses of the loopback device, and a run of two ranks:
- `kill`: one of three servers is killed; in every third run while a fourth one has just come and slots move.
- `stop`: one of three servers is stopped by SIGSTOP for 1 to 6 seconds.
- `etcd`: etcd is stopped for 2 seconds, and nothing else.
- `join`: a third server comes. `leave`: one of three gets SIGTERM and hands its rows over.
- `rank`: one of the two ranks is killed, and the run goes on. `ranks`: the run is killed, and started again. `all`: the
  servers too, and then there are three instead of two.

`identical` counts the runs whose weights and rows, with their optimizer states, are bit-equal to those of a run without
faults. A pause is the longest step after the fault minus the median step. `shares`: the smallest and largest part of
the slots that a server has at the end of `join` and `leave`. `p99_ratio`: the 99th percentile of a step's time over
that of the undisturbed run. `--staleness 2`: rows lack the updates of two steps. `--break backup`: servers that confirm
pushes which only they have.
"""

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from logged_process import LoggedProcess
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
from onecurve.servers.view_follower import VIEW_KEY, decoded_view

HERE = Path(__file__).parent
_JOB, _PORT = HERE / "params_job.py", 23790
_STEPS, _EVERY = 400, 50
_START_SECONDS = 60.0
_PATIENCE = 100.0


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
    """An etcd, and servers that are kept from one run to the next."""

    def __init__(self, folder: Path, is_broken: bool, staleness: int) -> None:
        self.folder, self._is_broken, self._staleness = folder, is_broken, staleness
        url = f"http://127.0.0.1:{_PORT}"
        words = ["etcd", "--unsafe-no-fsync", "--data-dir", str(folder / "etcd"), "--listen-client-urls", url]
        words += ["--advertise-client-urls", url, "--listen-peer-urls", f"http://127.0.0.1:{_PORT + 1}"]
        self.etcd = LoggedProcess(words)
        self.address = f"etcd://127.0.0.1:{_PORT}/bench"
        self.servers: list[LoggedProcess] = []
        self._number = 1
        self._runs = 0

    def have(self, count: int) -> None:
        """Have so many servers that live."""
        self.servers = [server for server in self.servers if server.process.poll() is None]
        while len(self.servers) > count:
            self.servers.pop().close()
        new = [self.start() for _ in range(count - len(self.servers))]
        for server in new:
            wait_until(lambda server=server: "serving rows" in server.output(), server.output)

    def start(self) -> LoggedProcess:
        self._number = self._number % 250 + 1
        program = [str(HERE / "broken_server.py")] if self._is_broken else ["-m", "onecurve"]
        words = [sys.executable, *program, "serve", self.address, "--listen", f"127.0.0.{self._number + 1}"]
        server = LoggedProcess(words)
        self.servers.append(server)
        return server

    def begin(self, steps: int = _STEPS, out: Path | None = None) -> WatchedRun:
        """Start a run of two ranks."""
        self._runs += 1
        out = out or self.folder / f"run{self._runs}"
        arguments = [f"params={self.address}", f"steps={steps}", f"every={_EVERY}", f"staleness={self._staleness}"]
        return WatchedRun(_JOB, out, *arguments, "--plan", "replicate2 mb32 fp64", "--no-check")

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
        self.etcd.close()


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


def finish(run: WatchedRun) -> None:
    status = run.end(_PATIENCE)
    if status != 0:
        raise SystemExit(f"the run has ended with {status}\n{run.output()[-3000:]}")


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


def etcd(lab: Lab, reference: Reference, found: Found, draw: random.Random) -> None:
    lab.have(3)
    with lab.begin() as run:
        step = reach(run, draw)
        os.kill(lab.etcd.process.pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(lab.etcd.process.pid, signal.SIGCONT)
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
    "etcd": etcd,
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
    with tempfile.TemporaryDirectory() as folder:
        lab = Lab(Path(folder), chosen.broken is not None, chosen.staleness)
        try:
            reference = Reference(lab)
            for _ in range(chosen.count):
                _SCENARIOS[chosen.scenario](lab, reference, found, draw)
                print(found.plain(), file=sys.stderr, flush=True)
        finally:
            lab.close()
    print(json.dumps(found.plain()) if chosen.json else found.plain())


if __name__ == "__main__":
    main()
