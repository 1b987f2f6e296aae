"""Run under a real Slurm of two nodes on this machine: by srun, and submitted, stopped, queued again and continued.

`python benchmarks/slurm.py --json`; needs root, and Debian's slurm-wlm and munge

"srun": one task per node trains what one host trains, bit for bit. "submitted": `--slurm` submits the job and follows
its log to a good end. "status": what the hosts exit with after `scancel --signal=TERM`. "requeued": Slurm then starts
the job again, and it continues. "exact": its weights equal those of a run that nobody interrupted. "log_kept": one log
holds both executions.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slurm_cluster import slurm_cluster

_JOB = Path(__file__).parent.parent / "tests" / "jobs" / "small.py"
_ARGUMENTS = ("slow=0.02", "epochs=3", "every=10")
_PLAN = ("--plan", "replicate2 mb4")
_TIMEOUT = 240.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, slurm_cluster(Path(folder) / "slurm"):
        found = measure(Path(folder))
    print(json.dumps(found) if chosen.json else "\n".join(f"{name}: {value}" for name, value in found.items()))


def measure(folder: Path) -> dict[str, Any]:
    expected = _weights(folder, "alone", _run(folder, *_command("alone")))
    by_srun = _run(folder, "srun", "--nodes=2", "--ntasks-per-node=1", *_command("srun"))
    submitted = _start(folder, *_command("submitted"), "--slurm", "--nodes=2 --time=10:00")
    records = folder / "submitted" / "records" / "rank-1.jsonl"
    _wait_until(lambda: records.exists() and records.read_text().count('"interval"') > 3, submitted)
    job = subprocess.run(["squeue", "-h", "-o", "%i"], capture_output=True, text=True, check=True).stdout.split()[0]
    subprocess.run(["scancel", "--signal=TERM", job], check=True)
    status = submitted.wait(_TIMEOUT)
    subprocess.run(["scontrol", "show", "job", job], stdout=sys.stderr, check=False)
    log = (folder / "submitted" / "slurm.log").read_text()
    statuses = set(map(int, re.findall(r"Exited with exit code (\d+)", log)))
    return {
        "srun": _weights(folder, "srun", by_srun) == expected,
        "submitted": status == 0,
        "status": statuses.pop() if len(statuses) == 1 else sorted(statuses),
        "requeued": "resumed  from step" in log,
        "exact": (folder / "submitted" / "weights.safetensors").read_bytes() == expected,
        "log_kept": -1 < log.find("interrupted by SIGTERM") < log.find("resumed  from step") < log.find("done: "),
    }


def _command(out: str) -> list[str]:
    return [sys.executable, "-m", "onecurve", "run", str(_JOB), *_ARGUMENTS, *_PLAN, "--out", out]


def _start(folder: Path, *command: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, cwd=folder, env=environment, stdout=sys.stderr)


def _run(folder: Path, *command: str) -> int:
    return _start(folder, *command).wait(_TIMEOUT)


def _weights(folder: Path, out: str, status: int) -> bytes:
    return (folder / out / "weights.safetensors").read_bytes() if status == 0 else b""


def _wait_until(condition: Callable[[], bool], process: "subprocess.Popen[bytes]") -> None:
    deadline = time.monotonic() + _TIMEOUT
    while not condition():
        if time.monotonic() > deadline or process.poll() is not None:
            raise SystemExit("the submitted job has not begun to train")
        time.sleep(0.1)


if __name__ == "__main__":
    main()
