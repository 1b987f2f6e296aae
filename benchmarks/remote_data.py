"""Data in an object store (moto's S3 server), reached over links of 100 Mbit/s from emulated hosts; needs root.

`python benchmarks/remote_data.py --json`; benchmarks/data.py includes its results.

- `remote_step_ratio`: mean time of a step that reads through the cache over that of one that reads local files, in
  turns in one process (remote_steps.py), after the first 40 steps. The cache holds half of the data, so files are
  fetched and removed all the time.
- `bytes_read_ratio`: bytes that the store has sent to three hosts (network namespaces) of one run with `peers`, over
  those of the data, of which the run reads everything once.
- `store_faults`: runs with a store that is stopped for 20 s, answers 503 to 5 % of the requests, or cuts 5 % of the
  answers off: true if the losses are those of the run on local files, bit for bit.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from logged_process import LoggedProcess, process_on
from namespaces import Host, emulated_hosts

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
import onecurve as oc
from object_store import ObjectStore, object_store
from onecurve.describe.record import StepRecord
from onecurve.runs.records import read_records

_JOB = Path(__file__).parent.parent / "tests" / "jobs" / "remote.py"
_STORE = "10.77.0.254"
_URL = "s3://bucket/train/"
_FILES, _LINES, _LINE_BYTES = 24, 200, 20_000
_RATE = "100mbit"
_TIMEOUT = 300.0


@contextmanager
def shaped_hosts(count: int) -> Iterator[list[Host]]:
    """Hosts whose links are limited in both directions, and an address of this machine that they reach."""
    with emulated_hosts(count, _RATE, [1.0] * count) as hosts:
        _run(f"ip addr add {_STORE}/24 dev ocbr")
        for host in hosts:
            _run(f"tc qdisc add dev {host.interface}b root tbf rate {_RATE} burst 64kb latency 400ms")
        yield hosts


def write_data(folder: Path, store: ObjectStore) -> int:
    """Write the data to a folder and to the store; return its bytes."""
    folder.mkdir()
    draw = random.Random(0)
    size = 0
    for file in range(_FILES):
        ids = range(file * _LINES, (file + 1) * _LINES)
        text = "".join(json.dumps({"id": each, "text": draw.randbytes(_LINE_BYTES // 2).hex()}) + "\n" for each in ids)
        (folder / f"{file:02}.jsonl").write_text(text)
        store.put(f"bucket/train/{file:02}.jsonl", text.encode())
        size += len(text)
    oc.index(str(folder), processes=1)
    return size


def index_store(folder: Path, store: ObjectStore) -> None:
    words = [sys.executable, "-m", "onecurve", "index", _URL, "--out", "remote.index"]
    with LoggedProcess(words, folder, **store.environment) as process:
        assert process.end(_TIMEOUT) == 0, process.output()


def step_ratio(host: Host, folder: Path, store: ObjectStore) -> dict[str, float]:
    script = str(Path(__file__).parent / "remote_steps.py")
    arguments = [str(folder / "local"), _URL, str(folder / "remote.index"), str(folder / "cache-steps")]
    # On all cores: one of an emulated host's would be shared by the training, its loaders and the cache.
    words = ["ip", "netns", "exec", host.name, sys.executable, script, *arguments]
    with LoggedProcess(words, folder, **store.environment) as process:
        assert process.end(_TIMEOUT) == 0, process.output()
        found: dict[str, float] = json.loads(process.output().splitlines()[-1])
    print(f"remote steps: {found}", file=sys.stderr, flush=True)
    return found


def bytes_ratio(hosts: Sequence[Host], folder: Path, store: ObjectStore, size: int) -> float:
    """Run on three hosts, which read all data once."""
    store.read.clear()
    steps = _FILES * _LINES // 32
    job = [f"where={_URL}", f"index={folder}/remote.index", "cache=cache", f"steps={steps}", "peers=1"]
    words = [
        sys.executable,
        "-m",
        "onecurve",
        "run",
        str(_JOB),
        *job,
        "--plan",
        "replicate3 mb(11,11,10)",
        "--no-check",
    ]
    words += ["--hosts", "3", "--out", str(folder / "out-hosts")]
    with ExitStack() as stack:
        started = []
        for host in hosts:
            own = folder / host.name
            own.mkdir()
            environment = {**store.environment, "XDG_CACHE_HOME": str(folder / "xdg")}
            started.append(stack.enter_context(process_on(host, words, own, **environment)))
        for process in started:
            assert process.end(_TIMEOUT) == 0, process.output()
        print(started[0].output()[-400:], file=sys.stderr, flush=True)
    read = sum(count for path, count in store.read.items() if path.endswith(".jsonl"))
    return read / size


def store_faults(folder: Path, store: ObjectStore) -> dict[str, bool]:
    """Run on this machine with a store that fails: with a cache that holds a third of the data, and without one."""

    def losses(name: str, *words: str) -> list[float]:
        command = [sys.executable, "-m", "onecurve", "run", str(_JOB), *words, "--ranks", "2"]
        with LoggedProcess([*command, "--no-check", "--out", name], folder, **store.environment) as process:
            assert process.end(_TIMEOUT) == 0, process.output()
        return [record.loss for record in read_records(folder / name) if isinstance(record, StepRecord)]

    expected = losses("expected", f"where={folder}/local", f"index={folder}/local/_onecurve.index", "steps=160")
    found = {}
    for name in ("stop", "refuse", "refuse_without_cache", "cut", "cut_without_cache"):
        store.faults.refused = 0.05 * name.startswith("refuse")
        store.faults.cut = 0.05 * name.startswith("cut")
        store.read.clear()
        store.failures = 0
        if name == "stop":
            threading.Thread(target=store.stop, args=(40_000_000, 20.0), daemon=True).start()
        steps = 20 if "without" in name else 160  # a request for each sample: many fail, and each waits before the next
        cached = [] if "without" in name else [f"cache=cache-{name}", "size=32M", "seconds=0.03"]
        begin = time.monotonic()
        read = losses(name, f"where={_URL}", "index=remote.index", f"steps={steps}", *cached)
        found[name] = read == expected[:steps]
        text = f"{name}: {found[name]}, {time.monotonic() - begin:.0f} s, {store.failures} failed requests"
        print(text, file=sys.stderr, flush=True)
    store.faults.refused = store.faults.cut = 0.0
    return found


def measured() -> dict[str, Any]:
    """All figures."""
    with tempfile.TemporaryDirectory() as scratch, shaped_hosts(3) as hosts:
        folder = Path(scratch)
        with object_store(folder, _STORE) as store:
            size = write_data(folder / "local", store)
            index_store(folder, store)
            steps = step_ratio(hosts[0], folder, store)
            return {
                "remote_step_ratio": round(steps["mean"], 3),
                "bytes_read_ratio": round(bytes_ratio(hosts, folder, store, size), 3),
                "store_faults": store_faults(folder, store),
            }


def _run(command: str) -> None:
    subprocess.run(command.split(), check=True, capture_output=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    found = measured()
    print(json.dumps(found) if chosen.json else found)


if __name__ == "__main__":
    main()
