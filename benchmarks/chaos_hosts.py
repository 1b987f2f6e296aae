"""The scenarios of chaos.py on three emulated hosts (namespaces.py): hosts that die, join again, or are cut off.

They train in float64, under a plan that is fitted to the hosts that are left, so that weights can be compared.
"""

import argparse
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np
from chaos_lab import JOB_FILE, TOLERANCE, Found, Lab, difference, say
from commits import Commits
from logged_process import LoggedProcess, etcd_on, process_on
from namespaces import Host, emulated_hosts, processes_of
from safetensors.numpy import load_file
from watched_run import Records

_QUOTAS = (0.5, 0.5, 0.5)
"""Of a core: two of the hosts share one, and none is to be slower than the others."""
_PLAN = "replicate3 mb4 fp64"
_JOB = ("width=64", "batch=12")
_TIMEOUT = 240.0
_CUT_OFF_SECONDS = 30.0
"""A host that is cut off ends within this time."""

Weights = Mapping[str, np.ndarray]


class HostRun:
    """`onecurve run` on several hosts."""

    def __init__(self, folder: Path, steps: int, every: int, *options: str) -> None:
        """`every`: steps between two checkpoints, or 0."""
        self.folder, self._options = folder, options
        self._job = (*_JOB, f"steps={steps}", f"every={every}")
        self.keepers: dict[Host, LoggedProcess] = {}
        self._earlier = ""
        """What keepers have printed that were started again."""
        self.records = Records(folder)
        self._asked = folder.with_name(f"{folder.name}-asked")
        """What the job reads that it is to do, see chaos_job.py."""
        self._asked.mkdir()

    def start(self, host: Host) -> None:
        words = [sys.executable, "-m", "onecurve", "run", str(JOB_FILE), *self._job]
        words += ["--no-check", "--plan", _PLAN, "--hosts", "2:3", "--out", str(self.folder), *self._options]
        if host in self.keepers:
            self._earlier += f"{host.name}, before:\n{self.keepers[host].output()[-3000:]}\n"
            self.keepers[host].close()
        cache = str(self.folder.parent / "cache")
        self.keepers[host] = process_on(host, words, XDG_CACHE_HOME=cache, CHAOS_FOLDER=str(self._asked))

    @contextmanager
    def held(self) -> Iterator[None]:
        """Let the steps take so long that the run does not end meanwhile."""
        hold = self._asked / "hold"
        hold.touch()
        yield
        hold.unlink()

    def wait(self, generation: int, step: int = 1) -> float:
        """Wait until a generation has done a step; return the time."""
        deadline = time.time() + _TIMEOUT
        while time.time() < deadline:
            if any(done >= step for done in self.records.steps(generation)):
                return time.time()
            if all(keeper.process.poll() is not None for keeper in self.keepers.values()):
                break
            time.sleep(0.005)
        raise SystemExit(f"generation {generation} has not done step {step}\n{self.output()}")

    def wait_after(self, fault: float, generation: int) -> float:
        """Wait until a generation has done a step; return the seconds since the fault."""
        return self.wait(generation) - fault

    def leader(self) -> Host:
        """The host that leads the run: the others say that they have joined it."""
        return next(host for host, keeper in self.keepers.items() if "joined the run" not in keeper.output())

    def ends(self, without: Host | None = None) -> list[int | None]:
        """Wait until it has ended on all hosts, or on all but one; return the exit statuses."""
        return [keeper.end(_TIMEOUT) for host, keeper in self.keepers.items() if host != without]

    def run_again(self) -> list[int | None]:
        """Start it again on all hosts; return the exit statuses."""
        for host in self.keepers:
            self.start(host)
        return self.ends()

    def output(self) -> str:
        return self._earlier + "\n".join(
            f"{host.name}:\n{keeper.output()[-3000:]}" for host, keeper in self.keepers.items()
        )

    def close(self) -> None:
        for keeper in self.keepers.values():
            keeper.close()


@contextmanager
def running(lab: Lab, hosts: list[Host], steps: int, with_etcd: bool = False, every: int = 0) -> Iterator[HostRun]:
    """A run on all hosts, which meet in its folder or in an etcd with a member on each."""
    with etcd_on(hosts, lab.new_folder()) if with_etcd else nullcontext("") as address:
        run = HostRun(lab.new_folder(), steps, every, *(("--join", address) if address else ()))
        try:
            for host in hosts:
                run.start(host)
            yield run
        finally:
            run.close()


def lose(host: Host) -> float:
    """A host dies with all its processes: nothing reaches the others any more. Return the time."""
    host.cut_off()
    now = time.time()
    for pid in processes_of(host):
        os.kill(pid, signal.SIGKILL)
    return now


def reference(lab: Lab, steps: int) -> Weights:
    """The weights of an uninterrupted run."""
    run = lab.run_alone(_PLAN, *_JOB, f"steps={steps}")
    return load_file(run / "weights.safetensors")


def judge(run: HostRun, found: Found, expected: Weights, finished: bool, steps: int) -> None:
    """Count how a run has ended."""
    found.runs += 1
    if not finished:
        say(run.output())
        return
    largest = difference(run.folder, expected)
    found.judge(run.records, largest <= TOLERANCE, steps)
    if found.exact != found.finished:
        say(f"the largest difference is {largest}")


def host(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    """One of three hosts dies, later one joins."""
    found.more = {"plans": []}
    with emulated_hosts(3, "", _QUOTAS) as hosts:
        expected = reference(lab, chosen.steps)
        for number in range(chosen.count):
            with running(lab, hosts, chosen.steps) as run:
                run.wait(1, draw.randrange(10, chosen.steps // 5))
                victim = draw.choice([host for host in hosts if host != run.leader()])
                recovered = run.wait_after(lose(victim), 2)
                found.recoveries.append(recovered)
                run.wait(2, max(run.records.steps(1)) + draw.randrange(5, chosen.steps // 5))
                with run.held():
                    victim.reconnect()
                    run.start(victim)
                    run.wait(3)
                statuses = run.ends()
                judge(run, found, expected, statuses == [0, 0, 0], chosen.steps)
                generations = [record for record in run.records.all() if record["kind"] == "generation"]
                found.more["plans"] = [record["plan"] for record in generations]
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
            with_etcd = number % 2 == 0
            with running(lab, hosts, chosen.steps, with_etcd) as run:
                run.wait(1, draw.randrange(10, chosen.steps // 3))
                victim = run.leader()
                lost = lose(victim)
                if with_etcd:
                    found.recoveries.append(run.wait_after(lost, 2))
                statuses = run.ends(without=victim)
                victim.reconnect()
                finished = statuses == [0, 0]
                if not with_etcd:
                    found.more["statuses_without_etcd"] += statuses
                    finished = run.run_again() == [0, 0, 0]
                judge(run, found, expected, finished, chosen.steps)
                took = f"with etcd, {found.recoveries[-1]:.2f} s" if with_etcd else "without etcd"
                say(f"{number + 1}/{2 * chosen.count} {took}: {statuses}")


def partition(lab: Lab, found: Found, draw: random.Random, chosen: argparse.Namespace) -> None:
    """One host is silently cut off from the two others; both sides see the run's folder. Every step is saved.

    The side that has no leader goes on if there is an etcd, of which it has two members.
    """
    found.both_committed = 0
    with emulated_hosts(3, "", _QUOTAS) as hosts:
        expected = reference(lab, chosen.steps)
        for number in range(chosen.count):
            with_etcd, cuts_leader = number % 2 == 1, number // 2 % 2 == 1
            with running(lab, hosts, chosen.steps, with_etcd, every=1) as run:
                commits = Commits(run.folder)
                run.wait(1, draw.randrange(10, chosen.steps // 3))
                others = [host for host in hosts if host != run.leader()]
                victim = run.leader() if cuts_leader else draw.choice(others)
                victim.cut_off()
                if with_etcd or not cuts_leader:
                    found.recoveries.append(run.wait_after(time.time(), 2))
                    statuses = [*run.ends(without=victim), run.keepers[victim].end(_CUT_OFF_SECONDS)]
                    finished = statuses == [0, 0, 75]
                    victim.reconnect()
                else:
                    statuses = run.ends(without=victim)
                    run.keepers[victim].process.send_signal(signal.SIGTERM)  # it waits for other hosts
                    victim.reconnect()
                    statuses.append(run.keepers[victim].end(_TIMEOUT))
                    finished = run.run_again() == [0, 0, 0]
                late = commits.late()
                found.both_committed += bool(late)
                judge(run, found, expected, finished, chosen.steps)
                meets = "etcd" if with_etcd else "folder"
                say(
                    f"{number + 1}/{chosen.count} {meets}, {'leader' if cuts_leader else 'member'}: {statuses}, late "
                    f"{late}, {commits.generations} generations"
                )
