"""Emulate several hosts on one machine; needs root.

Each host is a network namespace on a common bridge, with a rate-limited link, one core and a CPU quota.
"""

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BRIDGE = "ocbr"
_CGROUP = Path("/sys/fs/cgroup/cpu")
_CPU_PERIOD = 4_000
"""Period of the CPU quota in microseconds; short, so that a rank under a quota runs slowly and not in bursts."""
_EXIT_SECONDS = 10.0
_LINK_BURST = {"2mbit": "4kb", "100mbit": "64kb", "1gbit": "160kb"}
"""Burst size of the token bucket for each link rate; small, so that short messages are slowed too."""


@dataclass(frozen=True)
class Host:
    """One emulated host."""

    name: str
    """Name of the network namespace and of the cgroup."""
    address: str
    """IPv4 address on the bridge."""
    interface: str
    """Network interface inside the namespace."""
    core: int
    """Index of the core that its processes are pinned to."""
    quota: float
    """Fraction of the core that its processes may use; 1 for no limit."""

    def cut_off(self) -> None:
        """Let nothing through to and from this host, silently."""
        _run(f"ip link set {self.interface}b nomaster")

    def reconnect(self) -> None:
        _run(f"ip link set {self.interface}b master {_BRIDGE}", f"ip link set {self.interface}b up")

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command line that runs `command` on this host."""
        enter = f'echo $$ > {_CGROUP}/{self.name}/cgroup.procs; exec "$@"'
        pinned = ["taskset", "-c", str(self.core), *command]
        return ["sh", "-c", enter, "sh", "ip", "netns", "exec", self.name, *pinned]


@contextmanager
def emulated_hosts(count: int, rate: str, quotas: Sequence[float]) -> Iterator[list[Host]]:
    """Create the hosts, and remove them at the end of the block.

    `rate`: link rate in the notation of tc, or "" for no limit. `quotas`: fraction of a core for each host. If there
    are more hosts than cores, several hosts share a core; the sum of their quotas must not exceed 1.
    """
    cores = os.cpu_count() or 1
    hosts = [Host(f"och{n}", f"10.77.0.{n + 1}", f"ocv{n}", n % cores, quotas[n]) for n in range(count)]
    _remove(hosts)
    try:
        _run(f"ip link add {_BRIDGE} type bridge", f"ip link set {_BRIDGE} up")
        for host in hosts:
            _run(
                f"ip netns add {host.name}",
                f"ip link add {host.interface} type veth peer name {host.interface}b",
                f"ip link set {host.interface} netns {host.name}",
                f"ip link set {host.interface}b master {_BRIDGE}",
                f"ip link set {host.interface}b up",
                f"ip -n {host.name} addr add {host.address}/24 dev {host.interface}",
                f"ip -n {host.name} link set {host.interface} up",
                f"ip -n {host.name} link set lo up",
            )
            if rate:
                shape = f"root tbf rate {rate} burst {_LINK_BURST[rate]} latency 400ms"
                _run(f"ip netns exec {host.name} tc qdisc add dev {host.interface} {shape}")
            folder = _CGROUP / host.name
            folder.mkdir(exist_ok=True)
            (folder / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(int(_CPU_PERIOD * host.quota)) if host.quota < 1 else "-1")
        yield hosts
    finally:
        _remove(hosts)


def processes_of(host: Host) -> list[int]:
    """Ids of the processes that run on a host."""
    try:
        return [int(pid) for pid in (_CGROUP / host.name / "cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def _remove(hosts: Sequence[Host]) -> None:
    for host in hosts:
        for pid in processes_of(host):
            os.kill(pid, signal.SIGKILL)
        subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", f"{host.interface}b"], capture_output=True, check=False)
        _remove_cgroup(_CGROUP / host.name)
    subprocess.run(["ip", "link", "del", _BRIDGE], capture_output=True, check=False)


def _remove_cgroup(folder: Path) -> None:
    """Processes that were just killed may still be in it."""
    deadline = time.monotonic() + _EXIT_SECONDS
    while folder.exists():
        try:
            folder.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)
