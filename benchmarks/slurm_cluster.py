"""A Slurm controller and two nodes on this machine, without systemd; needs root, and Debian's slurm-wlm and munge.

Slurm reads its configuration from /etc/slurm, so only one such cluster can run at a time.
"""

import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_CONFIGURATION = Path("/etc/slurm/slurm.conf")
_MUNGE = Path("/run/munge")
_START_SECONDS = 30.0
_TEXT = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17002] CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@contextmanager
def slurm_cluster(folder: Path) -> Iterator[None]:
    """Start the cluster, with its state and logs in `folder`; stop it at the end of the block."""
    (folder / "state").mkdir(parents=True)
    _CONFIGURATION.parent.mkdir(exist_ok=True)
    _CONFIGURATION.write_text(_TEXT.format(host=socket.gethostname().partition(".")[0], folder=folder))
    _MUNGE.mkdir(exist_ok=True)
    subprocess.run(["chown", "munge", str(_MUNGE)], check=True)
    started = [_start(folder, "munged", "su", "-s", "/bin/sh", "munge", "-c", "exec munged --force --foreground")]
    try:
        _wait_for(lambda: (_MUNGE / "munge.socket.2").exists(), "munge")
        started.append(_start(folder, "slurmctld", "slurmctld", "-D"))
        started += [_start(folder, node, "slurmd", "-N", node, "-D") for node in ("n1", "n2")]
        _wait_for(lambda: _idle_nodes() == 2, "Slurm")
        yield
    finally:
        with suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(["scancel", "--user=root"], timeout=10, check=False)
        for process in reversed(started):
            process.terminate()
        for process in reversed(started):
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()


def _start(folder: Path, name: str, *command: str) -> "subprocess.Popen[bytes]":
    with (folder / f"{name}.log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)


def _idle_nodes() -> int:
    done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], capture_output=True, text=True, check=False)
    return done.stdout.split().count("idle")


def _wait_for(condition, what: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not start within {_START_SECONDS:.0f} s")
        time.sleep(0.2)
