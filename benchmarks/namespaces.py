"""Hosts on one machine: network namespaces on a bridge, links of a set rate, cores and quotas. Needs root."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_BRIDGE = "ocbr"
_CGROUP = Path("/sys/fs/cgroup/cpu")
_PERIOD = 4_000
"""Microseconds: short, so that a rank under a quota is slow rather than stopped now and then."""

_BURST = {"100mbit": "64kb", "1gbit": "160kb"}
"""What a link lets through at once: little, so that short messages are slow too."""


@dataclass(frozen=True)
class Host:
    name: str
    address: str
    interface: str
    core: int
    quota: float
    """Part of a core."""

    def command(self, command: Sequence[str]) -> list[str]:
        enter = f'echo $$ > {_CGROUP}/{self.name}/cgroup.procs; exec "$@"'
        pinned = ["taskset", "-c", str(self.core), *command]
        return ["sh", "-c", enter, "sh", "ip", "netns", "exec", self.name, *pinned]


@contextmanager
def hosts(count: int, rate: str, quotas: Sequence[float]) -> Iterator[list[Host]]:
    """`rate`: as tc writes it, or "" for no limit. Each host has one core, which some share where there are too few:
    their quotas must leave room for each other."""
    cores = os.cpu_count() or 1
    made = [Host(f"och{n}", f"10.77.0.{n + 1}", f"ocv{n}", n % cores, quotas[n]) for n in range(count)]
    _remove(made)
    try:
        _run(f"ip link add {_BRIDGE} type bridge", f"ip link set {_BRIDGE} up")
        for host in made:
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
                shape = f"root tbf rate {rate} burst {_BURST[rate]} latency 400ms"
                _run(f"ip netns exec {host.name} tc qdisc add dev {host.interface} {shape}")
            folder = _CGROUP / host.name
            folder.mkdir(exist_ok=True)
            (folder / "cpu.cfs_period_us").write_text(str(_PERIOD))
            (folder / "cpu.cfs_quota_us").write_text(str(int(_PERIOD * host.quota)) if host.quota < 1 else "-1")
        yield made
    finally:
        _remove(made)


def _remove(made: Sequence[Host]) -> None:
    for host in made:
        subprocess.run(["ip", "netns", "del", host.name], capture_output=True, check=False)
        if (_CGROUP / host.name).exists():
            (_CGROUP / host.name).rmdir()
    subprocess.run(["ip", "link", "del", _BRIDGE], capture_output=True, check=False)


def _run(*commands: str) -> None:
    for command in commands:
        subprocess.run(command.split(), check=True, capture_output=True)
