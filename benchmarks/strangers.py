"""What strangers on the network can do to a run, and what aborted runs leave behind.

`python benchmarks/strangers.py --json`; needs root

Two keepers on this machine run as two hosts. A stranger, who does not have the job's key, comes to every port of the
run: with random bytes, with the beginning of a message, with a repetition of what a host has sent, with the commands of
torch's own store, with pickled Python that would leave a mark, and with 10,000 connections that say nothing.

- "executed": marks that such Python has left. "went_on": the run has ended well, with the weights of another one.
- "step_ratio": median time of a step while the connections stand, over that without, in alternating phases.
- "open_to_all": listeners of the run on all interfaces.
- "left_behind": processes, ports, files in shared memory and temporary folders, after 100 runs that were killed.
"""

import argparse
import json
import os
import pickle
import random
import secrets
import signal
import socket
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

_GPT = Path(__file__).parent.parent / "examples" / "gpt.py"
_SMALL = Path(__file__).parent.parent / "tests" / "jobs" / "small.py"
_PLAN = ("--plan", "replicate2 mb16")
_STEPS = 1500
_PHASES = 4
_PHASE_SECONDS = 5.0
_IDLE_CONNECTIONS = 10_000
_ABORTED_RUNS = 100
_STORE_SECONDS = 3.0
_LISTEN = "0A"
"""State of a listening socket in /proc/net/tcp."""
_TIMEOUT = 900.0


class Mark:
    """Unpickling it creates a file."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, str]]:
        return open, (self._path, "w")


class HostsRun:
    """A run of two keepers, and its ports."""

    def __init__(self, folder: Path, out: str) -> None:
        words = [sys.executable, "-m", "onecurve", "run", str(_GPT), f"steps={_STEPS}", *_PLAN, "--no-check"]
        self._records = folder / out / "records" / "rank-0.jsonl"
        self._hosts = [
            subprocess.Popen(
                [*words, "--hosts", "2", "--out", out],
                cwd=folder,
                env={**os.environ, "SLURMD_NODENAME": name, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.DEVNULL,
            )
            for name in ("h0", "h1")
        ]

    def wait_for_step(self, step: int) -> None:
        deadline = time.monotonic() + _TIMEOUT
        while len(self.steps()) < step:
            if time.monotonic() > deadline or any(host.poll() is not None for host in self._hosts):
                raise SystemExit(f"the run has not reached step {step}")
            time.sleep(0.2)

    def steps(self) -> list[float]:
        """Seconds of the steps so far."""
        with suppress(FileNotFoundError):
            records = map(json.loads, self._records.read_text().splitlines())
            return [sum(record["seconds"].values()) for record in records if record["kind"] == "step"]
        return []

    def listeners(self) -> list[tuple[str, int]]:
        """Addresses and ports on which processes of the run listen."""
        pids = {pid for host in self._hosts for pid in _descendants(host.pid)}
        inodes = {inode for pid in pids for inode in _socket_inodes(pid)}
        return [(address, port) for address, port, inode in _listening_sockets() if inode in inodes]

    def end(self) -> bool:
        """Wait for the end; True if both hosts ended well."""
        return [host.wait(_TIMEOUT) for host in self._hosts] == [0, 0]


def _descendants(pid: int) -> Iterator[int]:
    yield pid
    with suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in (thread / "children").read_text().split():
                yield from _descendants(int(child))


def _socket_inodes(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                target = os.readlink(descriptor)
                if target.startswith("socket:["):
                    yield target[8:-1]


def _listening_sockets() -> Iterator[tuple[str, int, str]]:
    for table, size in (("tcp", 4), ("tcp6", 16)):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTEN:
                address, port = fields[1].split(":")
                words = struct.unpack(f">{size // 4}I", bytes.fromhex(address))
                packed = struct.pack(f"<{size // 4}I", *words)
                family = socket.AF_INET if size == 4 else socket.AF_INET6
                yield socket.inet_ntop(family, packed), int(port, 16), fields[9]


@contextmanager
def captured_traffic(port: int) -> Iterator[Callable[[], bytes]]:
    """Listen on the loopback device; the function returns what was sent to a port of this machine so far."""
    sniffer = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(3))
    sniffer.setblocking(False)
    flows: dict[int, bytes] = {}

    def read() -> bytes:
        with suppress(BlockingIOError):
            while True:
                _add_payload(sniffer.recv(1 << 16), port, flows)
        return max(flows.values(), key=len, default=b"")

    with sniffer:
        yield read


def _add_payload(frame: bytes, port: int, flows: dict[int, bytes]) -> None:
    if frame[12:14] != b"\x08\x00" or frame[23] != socket.IPPROTO_TCP:
        return
    start = 14 + (frame[14] & 15) * 4
    source, target = struct.unpack_from(">HH", frame, start)
    payload = frame[start + (frame[start + 12] >> 4) * 4 :]
    if target == port and payload:
        flows[source] = flows.get(source, b"") + payload


def attack(address: tuple[str, int], mark: Path, replay: bytes) -> None:
    """Come to one port with everything but silence."""
    evil = pickle.dumps(Mark(str(mark)))
    messages = [secrets.token_bytes(size) for size in (1, 8, 64, 4096, 100_000)]
    messages += [
        b"onecurve coordination 1\n",
        b"onecurve coordination 1\n" + bytes(32),
        b"\xff\xff\xff\x7f" + bytes(100),
    ]
    messages += [evil, struct.pack(">I", len(evil)) + evil, struct.pack("<Q", len(evil)) + evil]
    messages += [struct.pack("<q", number) for number in range(64)]  # gloo's numbers of connections
    messages += [replay, replay[: len(replay) // 2]]
    for message in messages:
        with suppress(OSError), socket.create_connection(address, 2) as stranger:
            stranger.sendall(message)
            stranger.settimeout(0.01)
            stranger.recv(1)
    # In a thread, because it waits for an answer that some ports never give.
    store = threading.Thread(target=_use_torch_store, args=(address, evil), daemon=True)
    store.start()
    store.join(_STORE_SECONDS)


def _use_torch_store(address: tuple[str, int], evil: bytes) -> None:
    """Speak to the port as torch's own store: list its keys, and write to each of them."""
    try:
        store = dist.TCPStore(*address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=1))
        for key in {*store.list_keys(), "default_pg/0//gloo/0/0", "0/0", "init/"}:
            store.set(key, evil)
    except (RuntimeError, dist.DistError):
        return


@contextmanager
def idle_connections(addresses: Sequence[tuple[str, int]], count: int) -> Iterator[None]:
    """Hold connections that say nothing."""
    opened = []
    try:
        for number in range(count):
            stranger = socket.socket()
            stranger.setblocking(False)
            with suppress(BlockingIOError, ConnectionError):
                stranger.connect(addresses[number % len(addresses)])
            opened.append(stranger)
            if number % 100 == 99:
                time.sleep(0.01)
        yield
    finally:
        for stranger in opened:
            stranger.close()


def measure_strangers(folder: Path) -> dict[str, Any]:
    mark = folder / "mark"
    run = HostsRun(folder, "attacked")
    deadline = time.monotonic() + 60
    while not (meeting := folder / "attacked" / ".meeting").exists():
        if time.monotonic() > deadline:
            raise SystemExit("the hosts have not met")
        time.sleep(0.001)
    with captured_traffic(json.loads(meeting.read_text())["port"]) as captured:
        run.wait_for_step(20)
        replay = captured()
    listeners = run.listeners()
    targets = [(address, port) for address, port in listeners if address not in ("0.0.0.0", "::")]
    print(f"{len(run.steps())} steps; attacking {targets}, with {len(replay)} bytes to repeat", file=sys.stderr)
    for target in targets:
        attack(target, mark, replay)
        print(f"{target}: {len(run.steps())} steps", file=sys.stderr)
    quiet, crowded = [], []
    for _ in range(_PHASES):
        quiet += _steps_during(run, _PHASE_SECONDS)
        with idle_connections(targets, _IDLE_CONNECTIONS):
            crowded += _steps_during(run, _PHASE_SECONDS)
        print(f"{len(quiet)} quiet and {len(crowded)} crowded steps", file=sys.stderr)
    went_on = run.end()
    if not HostsRun(folder, "undisturbed").end():
        raise SystemExit("the undisturbed run has failed")
    weights = [(folder / out / "weights.safetensors").read_bytes() for out in ("undisturbed", "attacked")]
    return {
        "executed": int(mark.exists()),
        "went_on": went_on and weights[0] == weights[1],
        "step_ratio": statistics.median(crowded) / statistics.median(quiet),
        "ports": len(targets),
        "replayed_bytes": len(replay),
        "open_to_all": len(listeners) - len(targets),
    }


def _steps_during(run: HostsRun, seconds: float) -> list[float]:
    before = len(run.steps())
    time.sleep(seconds)
    return run.steps()[before + 1 :]


def measure_left_behind(folder: Path) -> int:
    """Kill 100 runs at random moments; return how much is left of them."""
    rng = random.Random(0)
    before = _traces(folder)
    for number in range(_ABORTED_RUNS):
        words = [
            sys.executable,
            "-m",
            "onecurve",
            "run",
            str(_SMALL),
            "slow=0.05",
            "epochs=1000",
            "--out",
            f"a{number}",
        ]
        words += ["--plan", "replicate2 mb4", "--hosts", "1" if number % 2 else "2"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(folder / "temporary")}
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")  # torch keeps it for later runs
        started = [
            subprocess.Popen(words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            for _ in range(1 if number % 2 else 2)
        ]
        time.sleep(rng.uniform(0.2, 8))
        for process in started:
            process.send_signal(rng.choice((signal.SIGKILL, signal.SIGTERM)))
            process.send_signal(signal.SIGKILL)
        for process in started:
            process.wait()
    time.sleep(5)
    left = sorted(_traces(folder) - before)
    for trace in left:
        print(trace, file=sys.stderr)
    return len(left)


def _traces(folder: Path) -> set[str]:
    """Processes, ports, files in shared memory and temporary folders of runs."""
    processes = {
        entry.name
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and str(folder).encode() in _environment_of(entry)
    }
    own = set(_socket_inodes(os.getpid()))
    ports = {f"port {port}" for _, port, inode in _listening_sockets() if inode not in own}
    shared = {f"/dev/shm/{entry.name}" for entry in Path("/dev/shm").iterdir()}
    (folder / "temporary").mkdir(exist_ok=True)
    temporary = {str(entry) for entry in (folder / "temporary").iterdir()}
    return {f"process {pid}" for pid in processes} | ports | shared | temporary


def _environment_of(process: Path) -> bytes:
    with suppress(OSError):
        return (process / "environ").read_bytes()
    return b""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", choices=["strangers", "left_behind"])
    chosen = parser.parse_args()
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        if chosen.only != "left_behind":
            found |= measure_strangers(Path(folder))
        if chosen.only != "strangers":
            found["left_behind"] = measure_left_behind(Path(folder))
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
