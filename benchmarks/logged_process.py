"""Processes of a benchmark, with what they have printed: on this machine, or on an emulated host (namespaces.py)."""

import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from namespaces import Host

_ETCD_CLIENT, _ETCD_PEER = 2379, 2380


class LoggedProcess:
    """A process that prints into a file, and is killed at the end of a `with` block."""

    def __init__(self, words: Sequence[str], cwd: Path | None = None, **environment: str) -> None:
        self._log = tempfile.TemporaryFile("a+")  # noqa: SIM115  it is read while the process writes
        self.process = subprocess.Popen(
            words,
            cwd=cwd,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a signal of the terminal is for the benchmark
        )

    def output(self) -> str:
        self._log.seek(0)
        return self._log.read()

    def end(self, seconds: float) -> int | None:
        """Wait until it has ended; return its exit status, or None if it has not after this time."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        self.close()


def process_on(host: Host, words: Sequence[str], cwd: Path | None = None, **environment: str) -> LoggedProcess:
    """Start a process on an emulated host."""
    return LoggedProcess(host.command(words), cwd, SLURMD_NODENAME=host.name, **environment)


@contextmanager
def etcd_on(hosts: Sequence[Host], folder: Path) -> Iterator[str]:
    """One member of etcd on every host; yield the address to join."""
    members = [(f"e{number}", f"http://{host.address}") for number, host in enumerate(hosts)]
    cluster = ",".join(f"{name}={url}:{_ETCD_PEER}" for name, url in members)
    with ExitStack() as stack:
        for host, (name, url) in zip(hosts, members, strict=True):
            client, peer = f"{url}:{_ETCD_CLIENT}", f"{url}:{_ETCD_PEER}"
            words = ["etcd", "--unsafe-no-fsync", "--name", name, "--data-dir", str(folder / name)]
            words += ["--initial-cluster", cluster, "--listen-client-urls", client, "--advertise-client-urls", client]
            words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            stack.enter_context(process_on(host, words))
        yield "etcd://" + ",".join(f"{host.address}:{_ETCD_CLIENT}" for host in hosts)
