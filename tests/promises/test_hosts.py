"""Runs of several hosts. Here the hosts are keepers on one machine, which meet and train as on several."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from coordination_services import running_etcd
from harness import SMALL, onecurve, wait_for_steps

PLAN = "replicate2 mb4"


class Host:
    """One keeper, started as on a host of its own."""

    def __init__(self, name: str, folder: Path, *arguments: str, plan: str = PLAN, hosts: str = "2") -> None:
        command = [sys.executable, "-m", "onecurve", "run", SMALL, *arguments, "--plan", plan, "--hosts", hosts]
        environment = {**os.environ, "SLURMD_NODENAME": name, "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        self.process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)

    def end(self) -> tuple[int, str]:
        """Wait until it has ended; return its exit status and what it printed."""
        output, _ = self.process.communicate(timeout=120)
        return self.process.returncode, output


@pytest.fixture
def start(tmp_path: Path):
    all_started: list[Host] = []

    def start_hosts(*arguments_of_each: Sequence[str], plan: str = PLAN, hosts: str = "2") -> list[Host]:
        started = [
            Host(f"h{len(all_started) + n}", tmp_path, *arguments, plan=plan, hosts=hosts)
            for n, arguments in enumerate(arguments_of_each)
        ]
        all_started.extend(started)
        return started

    yield start_hosts
    for host in all_started:
        host.process.kill()
        host.process.wait()


def assert_statuses(ends: Sequence[tuple[int, str]], *statuses: int) -> None:
    assert [status for status, _ in ends] == [*statuses], "\n".join(f"{status}:\n{text}" for status, text in ends)


def new_key(path: Path) -> str:
    path.write_bytes(os.urandom(32))
    path.chmod(0o600)
    return str(path)


@pytest.mark.parametrize("meet", ["folder", "join"])
def test_two_hosts_train_what_one_host_trains(meet: str, start, tmp_path: Path) -> None:
    address = ("--join", "127.0.0.1:29613", "--key-file", new_key(tmp_path / "key")) if meet == "join" else ()
    hosts = start(("--out", "two", *address), ("--out", "two", *address))
    ends = [host.end() for host in hosts]
    assert_statuses(ends, 0, 0)
    one = onecurve("run", SMALL, "--plan", PLAN, "--out", "one", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert one.returncode == 0, one.stderr
    weights = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("one", "two")]
    assert weights[0] == weights[1]
    assert not list((tmp_path / "two").glob(".meeting*"))
    assert (tmp_path / "two" / "records" / "rank-1.jsonl").is_file()


def test_runs_of_the_same_name_follow_each_other_through_etcd(start, tmp_path: Path) -> None:
    with running_etcd(tmp_path, 1) as etcd:
        for epochs, steps in (("1", 8), ("2", 16)):
            arguments = (f"epochs={epochs}", "--out", "a", "--fresh", "--join", etcd.url())
            ends = [host.end() for host in start(arguments, arguments)]
            assert_statuses(ends, 0, 0)
            done = [output for _, output in ends if f"done: {steps} of {steps} steps" in output]
            assert len(done) == 1, ends  # only the host that leads prints the summary


@pytest.mark.slow  # hosts.py shows it too
def test_hosts_without_a_plan_are_planned_for(start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arguments = ("--out", "a")
    ends = [host.end() for host in start(arguments, arguments, plan="auto")]
    assert_statuses(ends, 0, 0)
    leader = next(output for _, output in ends if "measuring the links between the hosts" in output)
    assert any("proved  " in output and " parameters" in output for _, output in ends)
    assert re.search(r"plan .* on [12] of 2 hosts", leader)
    assert list((tmp_path / "cache").rglob("link-*.json"))


def test_a_host_that_comes_too_late_is_turned_away(start, tmp_path: Path) -> None:
    arguments = ("slow=0.05", "epochs=1000", "--out", "a")
    hosts = start(arguments, arguments)
    wait_for_steps(tmp_path / "a", 2, rank=1)
    (late,) = start(arguments)
    status, output = late.end()
    assert status == 1
    assert "the run has begun without this host, on h" in output
    hosts[0].process.send_signal(signal.SIGTERM)
    assert [host.end()[0] for host in hosts] == [75, 75]


def test_a_signal_ends_the_wait_for_other_hosts(start, tmp_path: Path) -> None:
    (host,) = start(("--out", "a"))
    deadline = time.monotonic() + 60
    while not (tmp_path / "a" / ".meeting").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    host.process.send_signal(signal.SIGTERM)
    status, output = host.end()
    assert status == 75
    assert "interrupted" in output
    assert not list((tmp_path / "a").glob(".meeting*"))


def test_another_job_is_refused_on_both_hosts_and_both_sides_are_named(start) -> None:
    ends = [host.end() for host in start(("--out", "a"), ("epochs=7", "--out", "a"))]
    for status, output in ends:
        assert status == 1
        assert "does not fit: its job's steps is" in output
        assert "on host h" in output


def test_another_key_is_refused(start, tmp_path: Path) -> None:
    join = ("--out", "a", "--join", "127.0.0.1:29614", "--key-file")
    hosts = start((*join, new_key(tmp_path / "a.key")), (*join, new_key(tmp_path / "b.key")))
    deadline = time.monotonic() + 60
    while (refused := next((host for host in hosts if host.process.poll() is not None), None)) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    status, output = refused.end()
    assert status == 1
    assert "does not know this job's key: the key differs: give the same --key-file on every host" in output
    assert "127.0.0.1:29614" in output


@pytest.mark.slow  # in CI, the scenario `host` of chaos.py shows it
@pytest.mark.parametrize("hosts", ["2", "1:2"])
def test_a_run_goes_on_when_a_host_is_killed(hosts: str, start, tmp_path: Path) -> None:
    """Another host takes its place, or the hosts that are left are enough. Either way the weights are the same."""
    arguments = ("slow=0.02", "epochs=24", "--out", "a")
    started = start(arguments, arguments, hosts=hosts)
    wait_for_steps(tmp_path / "a", 4, rank=1)
    follower = _follower(started, tmp_path)
    follower.process.kill()
    late = start(arguments, hosts=hosts) if hosts == "2" else []
    ends = [host.end() for host in (*started, *late) if host is not follower]
    assert_statuses(ends, *[0] * len(ends))
    leader = next(output for _, output in ends if "done: 192 of 192 steps" in output)
    if hosts == "1:2":  # otherwise it depends on whether the other host has come before the loss was known
        assert "waiting for another host" not in leader
    assert re.search(r"lost host h\d at step \d+; continuing from step \d+ with plan replicate2 mb4", leader)
    one = onecurve("run", SMALL, "epochs=24", "--plan", PLAN, "--out", "one", cwd=tmp_path, OMP_NUM_THREADS="1")
    assert one.returncode == 0, one.stderr
    weights = [(tmp_path / out / "weights.safetensors").read_bytes() for out in ("one", "a")]
    assert weights[0] == weights[1], leader


@pytest.mark.slow
def test_the_loss_of_the_leading_host_ends_the_run_which_can_be_started_again(start, tmp_path: Path) -> None:
    arguments = ("slow=0.02", "epochs=12", "every=4", "--out", "a")
    hosts = start(arguments, arguments)
    wait_for_steps(tmp_path / "a", 8, rank=1)
    follower = _follower(hosts, tmp_path)
    next(host for host in hosts if host is not follower).process.kill()
    status, output = follower.end()
    assert status == 75, output
    assert "started again, the run continues from its newest checkpoint" in output
    ends = [host.end() for host in start(arguments, arguments)]
    assert_statuses(ends, 0, 0)
    assert any("resumed  from step " in text and "done: 96 of 96 steps" in text for _, text in ends)


def test_a_signal_to_one_host_stops_and_saves_the_run_on_all(start, tmp_path: Path) -> None:
    hosts = start(*(("slow=0.05", "epochs=1000", "--out", "a") for _ in range(2)))
    wait_for_steps(tmp_path / "a", 2, rank=1)
    _follower(hosts, tmp_path).process.send_signal(signal.SIGTERM)
    ends = [host.end() for host in hosts]
    assert_statuses(ends, 75, 75)
    assert (tmp_path / "a" / "weights.safetensors").is_file()


def _follower(hosts: Sequence[Host], folder: Path) -> Host:
    """The host that does not have rank 0: the leader has called the meeting and holds rank 0's records open."""
    records = folder / "a" / "records" / "rank-0.jsonl"
    for host in hosts:
        if not _holds_open(host.process.pid, records):
            return host
    raise AssertionError("both hosts have rank 0")


def _holds_open(pid: int, path: Path) -> bool:
    """True if the process or a descendant has the file open."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    return any(os.path.realpath(entry) == str(path) for entry in descriptors) or any(
        _holds_open(int(child), path) for child in children
    )
