"""The scenarios of chaos.py on three emulated hosts (namespaces.py): hosts that die, join again, or are cut off.

They train in float64, under a plan that is fitted to the hosts that are left, so that weights can be compared.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from chaos_lab import JOB_FILE, Found, Lab, counted_once, say
from namespaces import Host, emulated_hosts, processes_of
from safetensors.numpy import load_file
from watched_run import Records

_QUOTAS = (0.5, 0.5, 0.5)
"""Of a core: two of the hosts share one, and none is to be slower than the others."""
_PLAN = "replicate3 mb4 fp64"
_JOB = ("width=64", "batch=12")
_TIMEOUT = 240.0
_TOLERANCE = 1e-9
_ETCD_CLIENT, _ETCD_PEER = 2379, 2380


class HostProcess:
    """A process on one host, with what it has printed."""

    def __init__(self, host: Host, *words: str, **environment: str) -> None:
        self.host = host
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115  it is read when the process has ended
        self.process = subprocess.Popen(
            host.command(words),
            env={**os.environ, "OMP_NUM_THREADS": "1", "SLURMD_NODENAME": host.name, **environment},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def end(self, seconds: float = _TIMEOUT) -> int | None:
        """Wait until it has ended; return its exit status, or None if it hangs."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


class HostRun:
    """`onecurve run` on several hosts."""

    def __init__(self, folder: Path, steps: int, every: int, *options: str) -> None:
        """`every`: steps between two checkpoints, or 0."""
        self.folder, self._options = folder, options
        self._job = (*_JOB, f"steps={steps}", f"every={every}")
        self.keepers: list[HostProcess] = []
        self.records = Records(folder)

    def start(self, host: Host) -> HostProcess:
        words = [sys.executable, "-m", "onecurve", "run", str(JOB_FILE), *self._job]
        words += ["--no-check", "--plan", _PLAN, "--hosts", "2:3", "--out", str(self.folder), *self._options]
        self.keepers.append(HostProcess(host, *words, XDG_CACHE_HOME=str(self.folder.parent / "cache")))
        return self.keepers[-1]

    def wait(self, generation: int, step: int = 1) -> float:
        """Wait until a generation has done a step; return the time."""
        deadline = time.time() + _TIMEOUT
        while time.time() < deadline:
            if any(done >= step for done in self.records.steps(generation)):
                return time.time()
            time.sleep(0.005)
        raise SystemExit(f"generation {generation} has not done step {step}\n{self.output()}")

    def leader(self) -> Host:
        """The host that leads the run: the others say that they have joined it."""
        return next(keeper.host for keeper in self.keepers if "joined the run" not in keeper.output())

    def ends(self) -> list[int | None]:
        return [keeper.end() for keeper in self.keepers]

    def output(self) -> str:
        return "\n".join(f"{keeper.host.name}:\n{keeper.output()[-3000:]}" for keeper in self.keepers)

    def close(self) -> None:
        for keeper in self.keepers:
            keeper.close()


@contextmanager
def running(lab: Lab, hosts: list[Host], steps: int, *options: str, every: int = 0) -> Iterator[HostRun]:
    run = HostRun(lab.new_folder(), steps, every, *options)
    try:
        for host in hosts:
            run.start(host)
        yield run
    finally:
        run.close()


@contextmanager
def etcd(hosts: list[Host], folder: Path) -> Iterator[str]:
    """One member of etcd on every host; yield the address to join."""
    members = [(f"e{number}", f"http://{host.address}") for number, host in enumerate(hosts)]
    cluster = ",".join(f"{name}={url}:{_ETCD_PEER}" for name, url in members)
    with ExitStack() as stack:
        for host, (name, url) in zip(hosts, members, strict=True):
            client, peer = f"{url}:{_ETCD_CLIENT}", f"{url}:{_ETCD_PEER}"
            words = ["etcd", "--unsafe-no-fsync", "--name", name, "--data-dir", str(folder / name)]
            words += ["--initial-cluster", cluster, "--listen-client-urls", client, "--advertise-client-urls", client]
            words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            stack.callback(HostProcess(host, *words).close)
        yield "etcd://" + ",".join(f"{host.address}:{_ETCD_CLIENT}" for host in hosts)


def lose(host: Host) -> float:
    """A host dies with all its processes: nothing reaches the others any more. Return the time."""
    host.cut_off()
    now = time.time()
    for pid in processes_of(host):
        os.kill(pid, signal.SIGKILL)
    return now


def reference(lab: Lab, steps: int) -> dict:
    """The weights of an uninterrupted run."""
    run = lab.run_alone(_PLAN, *_JOB, f"steps={steps}")
    return load_file(run / "weights.safetensors")


def judge(run: HostRun, found: Found, expected: dict, finished: bool, steps: int) -> None:
    found.runs += 1
    if not finished:
        say(run.output())
        return
    found.finished += 1
    weights = load_file(run.folder / "weights.safetensors")
    difference = max(float(abs(weights[name] - value).max()) for name, value in expected.items())
    once = counted_once(run.records.all(), steps)
    found.exact += difference <= _TOLERANCE and once
    generations = [record for record in run.records.all() if record["kind"] == "generation"]
    found.lost_steps = max([found.lost_steps, *(record["lost_steps"] for record in generations)])
    found.interval = max([found.interval, *run.records.intervals()])
    if difference > _TOLERANCE or not once:
        say(f"the largest difference is {difference}, every step counts once: {once}")


def host(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    """One of three hosts dies, later one joins."""
    found.more = {"plans": []}
    with emulated_hosts(3, "", _QUOTAS) as hosts:
        expected = reference(lab, chosen.steps)
        for number in range(chosen.count):
            with running(lab, hosts, chosen.steps) as run:
                run.wait(1, draw.randrange(10, chosen.steps // 5))
                victim = draw.choice([host for host in hosts if host != run.leader()])
                lost = lose(victim)
                recovered = run.wait(2) - lost
                found.recoveries.append(recovered)
                run.wait(2, max(run.records.steps(1)) + draw.randrange(5, chosen.steps // 5))
                victim.reconnect()
                run.start(victim)
                run.wait(3)
                statuses = run.ends()
                generations = [record for record in run.records.all() if record["kind"] == "generation"]
                found.more["plans"] = [record["plan"] for record in generations]
                judge(run, found, expected, statuses.count(0) == len(hosts), chosen.steps)
                say(f"{number + 1}/{chosen.count}: {recovered:.2f} s, {statuses}")
                for record in generations[1:]:
                    seconds = {name: round(value, 2) for name, value in record["seconds"].items()}
                    text = f"{record['why']}, from step {record['from_step']} as {record['plan']}"
                    say(f"    {text} {json.dumps(seconds)}")


def leader(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    """The host that leads dies: with etcd, of which a member dies too, and without."""
    found.more = {"statuses_without_etcd": []}
    with emulated_hosts(3, "", _QUOTAS) as hosts:
        expected = reference(lab, chosen.steps)
        for number in range(2 * chosen.count):
            has_etcd = number % 2 == 0
            with ExitStack() as stack:
                options: tuple[str, ...] = ()
                if has_etcd:
                    options = ("--join", stack.enter_context(etcd(hosts, lab.new_folder())))
                run = stack.enter_context(running(lab, hosts, chosen.steps, *options))
                run.wait(1, draw.randrange(10, chosen.steps // 3))
                victim = run.leader()
                lost = lose(victim)
                if has_etcd:
                    recovered = run.wait(2) - lost
                    found.recoveries.append(recovered)
                    left = [keeper for keeper in run.keepers if keeper.host != victim]
                    statuses = [keeper.end() for keeper in left]
                    judge(run, found, expected, statuses == [0, 0], chosen.steps)
                    say(f"{number + 1}/{2 * chosen.count} etcd: {recovered:.2f} s, {statuses}")
                else:
                    left = [keeper for keeper in run.keepers if keeper.host != victim]
                    statuses = [keeper.end() for keeper in left]
                    found.more["statuses_without_etcd"] += statuses
                    victim.reconnect()
                    run.keepers.clear()
                    for host in hosts:
                        run.start(host)
                    again = run.ends()
                    judge(run, found, expected, again == [0, 0, 0], chosen.steps)
                    say(f"{number + 1}/{2 * chosen.count} without etcd: {statuses}, then {again}")
                victim.reconnect()


class Commits:
    """Watches the checkpoints of a run: which generation has committed one, and when."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "checkpoints"
        self._begun: dict[str, float] = {}
        self._committed: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._is_over.wait(0.002):
            now = time.time()
            try:
                names = os.listdir(self._folder)
            except OSError:
                continue
            for name in names:
                if name.startswith(".generation-"):
                    self._begun.setdefault(name.removeprefix(".generation-"), now)
                elif name.startswith("step-"):
                    self._committed.setdefault(name, now)

    def late(self) -> list[str]:
        """Checkpoints that a generation has committed after the next one had begun."""
        self._is_over.set()
        self._thread.join()
        late = []
        for name, time_of in self._committed.items():
            own = next((begun for generation, begun in self._begun.items() if generation in name), None)
            following = [begun for begun in self._begun.values() if own is not None and begun > own]
            if following and time_of > min(following) + 0.05:
                late.append(name)
        return late

    @property
    def generations(self) -> int:
        return len(self._begun)


def partition(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    """One host is silently cut off from the two others; both sides see the run's folder. Every step is saved."""
    found.more = {"both_committed": 0}
    with emulated_hosts(3, "", _QUOTAS) as hosts:
        expected = reference(lab, chosen.steps)
        for number in range(chosen.count):
            with ExitStack() as stack:
                options: tuple[str, ...] = ()
                if number % 2:
                    options = ("--join", stack.enter_context(etcd(hosts, lab.new_folder())))
                run = stack.enter_context(running(lab, hosts, chosen.steps, *options, every=1))
                commits = Commits(run.folder)
                run.wait(1, draw.randrange(10, chosen.steps // 3))
                leads = bool(number // 2 % 2)
                victim = run.leader() if leads else draw.choice([host for host in hosts if host != run.leader()])
                victim.cut_off()
                goes_on = number % 2 == 1 or not leads
                if goes_on:
                    cut = time.time()
                    found.recoveries.append(run.wait(2) - cut)
                left = [keeper for keeper in run.keepers if keeper.host != victim]
                statuses = [keeper.end() for keeper in left]
                cut_off = next(keeper for keeper in run.keepers if keeper.host == victim)
                if not goes_on:  # the host that leads waits for others
                    cut_off.process.send_signal(signal.SIGTERM)
                    victim.reconnect()
                    statuses.append(cut_off.end())
                    run.keepers.clear()
                    for host in hosts:
                        run.start(host)
                    finished = run.ends() == [0, 0, 0]
                else:
                    statuses.append(cut_off.end(30.0))
                    finished = statuses[:2] == [0, 0] and statuses[2] == 75
                    victim.reconnect()
                late = commits.late()
                found.more["both_committed"] += bool(late)
                judge(run, found, expected, finished, chosen.steps)
                way = "etcd" if number % 2 else "folder"
                say(
                    f"{number + 1}/{chosen.count} {way}, {'leader' if leads else 'member'}: {statuses}, late {late}, "
                    f"{commits.generations} generations"
                )
