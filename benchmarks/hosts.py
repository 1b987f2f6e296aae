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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from namespaces import Host, emulated_hosts

_GPT = Path(__file__).parent.parent / "examples" / "gpt.py"
_HOSTS = 3
_JOB = ("batch=24", "steps=40")
_PLANS = {3: "replicate3 mb8", 2: "replicate2 mb12"}
"""Number of ranks → plan."""
_TIMEOUT = 600.0
_PORT = 29500
_ETCD_CLIENT, _ETCD_PEER = 2379, 2380
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
    ) -> list[tuple[int, str]]:
        """Start `onecurve run` on the first hosts, with the options of each; return exit statuses and outputs."""
        started = []
        for host, own, extra in zip(self.hosts, options, environments, strict=False):
            words = [sys.executable, "-m", "onecurve", "run", str(script), *_JOB, "--no-check", *own]
            environment = _environment(SLURMD_NODENAME=host.name, XDG_CACHE_HOME=str(self.folder / "cache"), **extra)
            started.append(_start(host.command(words), self.folder, environment))
        try:
            return [(process.wait(_TIMEOUT), _output(process)) for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()

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

    @contextmanager
    def etcd(self) -> Iterator[str]:
        """One member of etcd on every host; yield the address to join."""
        members = [(f"e{n}", f"http://{host.address}") for n, host in enumerate(self.hosts)]
        cluster = ",".join(f"{name}={url}:{_ETCD_PEER}" for name, url in members)
        started = []
        for host, (name, url) in zip(self.hosts, members, strict=True):
            client, peer = f"{url}:{_ETCD_CLIENT}", f"{url}:{_ETCD_PEER}"
            words = ["etcd", "--name", name, "--data-dir", str(self.folder / name), "--initial-cluster", cluster]
            words += ["--listen-client-urls", client, "--advertise-client-urls", client]
            words += ["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]
            started.append(_start(host.command(words), self.folder, _environment()))
        try:
            yield "etcd://" + ",".join(f"{host.address}:{_ETCD_CLIENT}" for host in self.hosts)
        finally:
            for process in started:
                process.kill()
                process.wait()


def _environment(**extra: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **extra}


def _start(command: Sequence[str], folder: Path, environment: dict[str, str]) -> "subprocess.Popen[str]":
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115  it is read when the process has ended
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, text=True)
    process.log = log  # type: ignore[attr-defined]
    return process


def _output(process: "subprocess.Popen[str]") -> str:
    log = process.log  # type: ignore[attr-defined]
    log.seek(0)
    return log.read()


def _succeeded(ends: Sequence[tuple[int, str]]) -> bool:
    for status, output in ends:
        if status:
            print(f"exit status {status}:\n{output[-3000:]}", file=sys.stderr)
    return not any(status for status, _ in ends)


def reference(folder: Path, ranks: int) -> bytes:
    """The weights that torchrun trains on this host."""
    out = f"torchrun-{ranks}"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    words = ["-m", "onecurve", "run", str(_GPT), *_JOB, "--no-check", "--plan", _PLANS[ranks], "--out", out]
    environment = _environment(GLOO_SOCKET_IFNAME="lo")
    subprocess.run([*launch, *words], cwd=folder, env=environment, check=True, capture_output=True, timeout=_TIMEOUT)
    return (folder / out / "weights.safetensors").read_bytes()


def by_mpirun(folder: Path) -> bool:
    launch = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "2"]
    words = [sys.executable, "-m", "onecurve", "run", str(_GPT), *_JOB, "--no-check", "--plan", _PLANS[2]]
    process = _start([*launch, *words, "--out", "mpirun"], folder, _environment())
    ended_well = _succeeded([(process.wait(_TIMEOUT), _output(process))])
    return ended_well and (folder / "mpirun" / "weights.safetensors").read_bytes() == reference(folder, 2)


def meets(lab: Lab) -> dict[str, bool]:
    """How the hosts met → whether they trained what torchrun trains."""
    expected = reference(lab.folder, _HOSTS)
    plan = ("--plan", _PLANS[_HOSTS])
    found = {"folder": lab.run_all("folder", *plan) and lab.weights("folder") == expected}
    where = ("--join", f"{lab.hosts[0].address}:{_PORT}", "--key-file", lab.key_file("job.key"))
    found["join"] = lab.run_all("join", *plan, *where) and lab.weights("join") == expected
    with lab.etcd() as address:
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
    started = []
    try:
        for number, host in enumerate(lab.hosts[:2]):
            own = [*words, "--key-file", lab.key_file(f"{number}.key")]
            started.append(_start(host.command(own), lab.folder, _environment(SLURMD_NODENAME=host.name)))
            time.sleep(1)  # the first host owns the address, and serves it
        status, text = started[1].wait(_TIMEOUT), _output(started[1])
        names_both = address in text and lab.hosts[1].address in text
        return status == 1 and "does not know this job's key" in text and names_both and started[0].poll() is None
    finally:
        for process in started:
            process.kill()
            process.wait()


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
