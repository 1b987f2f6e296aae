"""Run on three emulated hosts with one command per host, and compare the weights with torchrun's.

`python benchmarks/hosts.py --json`; needs root, etcd and mpirun (Debian's etcd-server and openmpi-bin)

Each host is a network namespace (namespaces.py). The hosts meet in the run's folder, at an address, and in an etcd with
one member on each host; two ranks are started by mpirun. Each way is true in the output only if the weights after 40
steps of examples/gpt.py equal those of torchrun, bit for bit, under the same plan. "planned": without a plan, the hosts
measure themselves and their links and find one that uses all of them. "refused": how many of another torch version (a
script that pretends to have it), another job and a wrong key are refused with both sides named.
"""

import argparse
import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from logged_process import LoggedProcess, etcd_on, process_on
from namespaces import Host, emulated_hosts

_GPT = Path(__file__).parent.parent / "examples" / "gpt.py"
_HOSTS = 3
_JOB = ("batch=24", "steps=40")
_PLANS = {3: "replicate3 mb8", 2: "replicate2 mb12"}
"""Number of ranks → plan."""
_TIMEOUT = 600.0
_PORT = 29500
_OTHER_TORCH = """
import importlib.util
import os
import torch

torch.__version__ = os.environ.get("PRETENDED_TORCH", torch.__version__)
spec = importlib.util.spec_from_file_location("gpt", os.environ["GPT"])
gpt = importlib.util.module_from_spec(spec)
spec.loader.exec_module(gpt)
job = gpt.job
"""


class Lab:
    """The hosts, and a folder that all of them see."""

    def __init__(self, hosts: Sequence[Host], folder: Path) -> None:
        self.hosts, self.folder = hosts, folder

    def run(
        self, options: Sequence[Sequence[str]], script: Path = _GPT, environments: Sequence[dict[str, str]] = ({},) * 3
    ) -> list[tuple[int | None, str]]:
        """Start `onecurve run` on the first hosts, with the options of each; return exit statuses and outputs."""
        cache = str(self.folder / "cache")
        with ExitStack() as stack:
            started = []
            for host, own, extra in zip(self.hosts, options, environments, strict=False):
                words = [sys.executable, "-m", "onecurve", "run", str(script), *_JOB, "--no-check", *own]
                process = process_on(host, words, self.folder, XDG_CACHE_HOME=cache, **extra)
                started.append(stack.enter_context(process))
            return [(process.end(_TIMEOUT), process.output()) for process in started]

    def run_all(self, out: str, *options: str) -> bool:
        """Run on all hosts; True if every host ended well."""
        ends = self.run([[*options, "--hosts", str(len(self.hosts)), "--out", out]] * len(self.hosts))
        return _succeeded(ends)

    def key_file(self, name: str) -> str:
        path = self.folder / name
        path.write_bytes(secrets.token_bytes(32))
        path.chmod(0o600)
        return str(path)

    def weights(self, out: str) -> bytes:
        return (self.folder / out / "weights.safetensors").read_bytes()


def _succeeded(ends: Sequence[tuple[int | None, str]]) -> bool:
    for status, output in ends:
        if status != 0:
            print(f"exit status {status}:\n{output[-3000:]}", file=sys.stderr)
    return all(status == 0 for status, _ in ends)


def reference(folder: Path, ranks: int) -> bytes:
    """The weights that torchrun trains on this host."""
    out = f"torchrun-{ranks}"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words = ["-m", "onecurve", "run", str(_GPT), *_JOB, "--no-check", "--plan", _PLANS[ranks], "--out", out]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run([*launch, *words], cwd=folder, env=environment, check=True, capture_output=True, timeout=_TIMEOUT)
    return (folder / out / "weights.safetensors").read_bytes()


def by_mpirun(folder: Path) -> bool:
    launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    words = [sys.executable, "-m", "onecurve", "run", str(_GPT), *_JOB, "--no-check", "--plan", _PLANS[2]]
    with LoggedProcess([*launch, *words, "--out", "mpirun"], folder) as process:
        ended_well = _succeeded([(process.end(_TIMEOUT), process.output())])
    return ended_well and (folder / "mpirun" / "weights.safetensors").read_bytes() == reference(folder, 2)


def meets(lab: Lab) -> dict[str, bool]:
    """How the hosts met → whether they trained what torchrun trains."""
    expected = reference(lab.folder, _HOSTS)
    plan = ("--plan", _PLANS[_HOSTS])
    found = {"folder": lab.run_all("folder", *plan) and lab.weights("folder") == expected}
    where = ("--join", f"{lab.hosts[0].address}:{_PORT}", "--key-file", lab.key_file("job.key"))
    found["join"] = lab.run_all("join", *plan, *where) and lab.weights("join") == expected
    with etcd_on(lab.hosts, lab.folder) as address:
        found["etcd"] = lab.run_all("etcd", *plan, "--join", address) and lab.weights("etcd") == expected
    return found


def planned(lab: Lab) -> bool:
    """Without a plan: is one found that has ranks on all hosts?"""
    ends = lab.run([["--hosts", str(_HOSTS), "--out", "planned"]] * _HOSTS)
    text = "\n".join(output for _, output in ends)
    found = re.search(rf"plan (.*): \d+ ranks on {_HOSTS} of {_HOSTS} hosts", text)
    print(f"planned: {found[1] if found else 'no plan for all hosts'}", file=sys.stderr)
    return _succeeded(ends) and found is not None


def refused(lab: Lab) -> int:
    """How many hosts that do not fit are refused with both sides named."""
    first, second = (host.name for host in lab.hosts[:2])
    plan = ("--plan", _PLANS[2], "--hosts", "2")

    def names_both(out: str, what: str, options: Sequence[Sequence[str]], script: Path = _GPT, **second_host: str):
        environments = [{"GPT": str(_GPT)}, {"GPT": str(_GPT), **second_host}]
        ends = lab.run([[*plan, "--out", out, *own] for own in options], script, environments)
        return all(status == 1 and what in text and first in text and second in text for status, text in ends)

    script = lab.folder / "other_torch.py"
    script.write_text(_OTHER_TORCH)
    other_torch = names_both("torch", "torch is", [[], []], script, PRETENDED_TORCH="2.12.0")
    other_job = names_both("job", "its job's steps is", [[], ["steps=41"]])
    return other_torch + other_job + _wrong_key_is_refused(lab, plan)


def _wrong_key_is_refused(lab: Lab, plan: Sequence[str]) -> bool:
    """The host that has the wrong key ends; the other one goes on waiting."""
    address = f"{lab.hosts[0].address}:{_PORT + 1}"
    words = [sys.executable, "-m", "onecurve", "run", str(_GPT), *_JOB, *plan, "--out", "key", "--join", address]
    with ExitStack() as stack:
        started = []
        for number, host in enumerate(lab.hosts[:2]):
            own = [*words, "--key-file", lab.key_file(f"{number}.key")]
            started.append(stack.enter_context(process_on(host, own, lab.folder)))
            time.sleep(1)  # the first host owns the address, and serves it
        waiting, refused = started
        status, text = refused.end(_TIMEOUT), refused.output()
        names_both = address in text and lab.hosts[1].address in text
        still_waits = waiting.process.poll() is None
        return status == 1 and "does not know this job's key" in text and names_both and still_waits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as folder,
        emulated_hosts(_HOSTS, "", [0.5] * _HOSTS) as hosts,
    ):
        lab = Lab(hosts, Path(folder))
        found = {**meets(lab), "mpirun": by_mpirun(lab.folder), "planned": planned(lab), "refused": refused(lab)}
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
