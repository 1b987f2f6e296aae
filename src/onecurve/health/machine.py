"""Checks of this machine alone."""

import contextlib
import math
import os
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from onecurve.describe.health import HealthCheck
from onecurve.describe.units import bytes_text
from onecurve.device.network import own_address
from onecurve.health.versions import installed

_GIB = 2**30
_SHARED_MEMORY = _GIB
"""Loader processes hand samples over in shared memory; containers often have 64 MiB."""
_OPEN_FILES = 4096
_SLURM_SECONDS = 10.0


def machine_checks() -> Iterator[HealthCheck]:
    """Everything that can be said about one host."""
    yield from (
        check()
        for check in (_python, _torch, _devices, _cores, _memory, _shared_memory, _open_files, _temporary, _host_name)
    )
    if shutil.which("sinfo"):
        yield _slurm()


def _python() -> HealthCheck:
    import torch

    text = ".".join(map(str, sys.version_info[:3]))
    if not _is_compiled(torch):
        text += "; no compiled modules of torch are kept: every process compiles them again, which takes seconds"
        fix = "unset PYTHONDONTWRITEBYTECODE, or compile them once: python -m compileall -q "
        return HealthCheck("python", "note", text, fix + sysconfig.get_path("purelib"))
    return HealthCheck("python", "ok", text)


def _is_compiled(imported: ModuleType) -> bool:
    """Whether the next process that imports a module finds it compiled."""
    spec = imported.__spec__
    return spec is None or spec.cached is None or Path(spec.cached).exists()


def _torch() -> HealthCheck:
    import torch

    release = torch.__version__.partition("+")[0]
    if not release.startswith("2.13."):
        fix = "pip install torch==2.13.0: parts of torch that have no stable interface differ between versions"
        return HealthCheck("torch", "problem", f"version {torch.__version__}", fix)
    if not torch.distributed.is_available() or not torch.distributed.is_backend_available("gloo"):
        return HealthCheck("torch", "problem", "built without torch.distributed or gloo", "install torch from PyPI")
    return HealthCheck("torch", "ok", str(torch.__version__))


def _devices() -> HealthCheck:
    import torch

    if torch.accelerator.is_available():
        kind = torch.accelerator.current_accelerator()
        return HealthCheck("devices", "ok", f"{torch.accelerator.device_count()} × {kind.type if kind else 'unknown'}")
    if os.path.exists("/proc/driver/nvidia/version") or shutil.which("nvidia-smi"):
        text = "there is an NVIDIA driver, but torch finds no device"
        fix = "install the CUDA build of torch, and see whether nvidia-smi lists the devices in this container"
        return HealthCheck("devices", "problem", text, fix)
    return HealthCheck("devices", "ok", "CPU only")


def _cores() -> HealthCheck:
    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    text = f"{usable} of {present} usable"
    quota = _core_quota()
    if quota < usable:
        fix = "limit the container to a set of cores (docker run --cpuset-cpus), or start fewer ranks and threads"
        return HealthCheck("cores", "problem", f"{text}, but a CPU quota allows the time of {quota:.1f}", fix)
    if threads := os.environ.get("OMP_NUM_THREADS"):
        fix = "unset it: ranks then divide the cores among themselves"
        return HealthCheck("cores", "note", f"{text}; OMP_NUM_THREADS={threads} is set", fix)
    return HealthCheck("cores", "ok", text)


def _core_quota(root: Path = Path("/sys/fs/cgroup")) -> float:
    """The number of cores whose time the container's CPU quota allows, or infinity without a quota."""
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join((root / name).read_text() for name in names).split()
            if float(quota.replace("max", "-1")) > 0:
                return float(quota) / float(period)
    return math.inf


def _memory() -> HealthCheck:
    available = _kernel_bytes("MemAvailable")
    text = f"{bytes_text(available)} available of {bytes_text(_kernel_bytes('MemTotal'))}"
    if available < _GIB:
        return HealthCheck("memory", "problem", text, "end other programs: each rank needs several hundred MiB")
    return HealthCheck("memory", "ok", text)


def _kernel_bytes(name: str) -> int:
    with open("/proc/meminfo", encoding="ascii") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))


def _shared_memory() -> HealthCheck:
    try:
        free = shutil.disk_usage("/dev/shm").free
    except OSError:
        return HealthCheck("shared memory", "problem", "there is no /dev/shm", "mount a tmpfs there")
    if free < _SHARED_MEMORY:
        fix = "give the container more, for example docker run --shm-size=8g; loader processes and snapshots need it"
        return HealthCheck("shared memory", "problem", f"{bytes_text(free)} free in /dev/shm", fix)
    return HealthCheck("shared memory", "ok", f"{bytes_text(free)} free in /dev/shm")


def _open_files() -> HealthCheck:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= most < _OPEN_FILES:
        return HealthCheck("open files", "problem", f"at most {most:,}", f"raise the hard limit to {_OPEN_FILES:,}")
    return HealthCheck("open files", "ok", "no limit" if most < 0 else f"at most {most:,}")


def _temporary() -> HealthCheck:
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free < _GIB:
        return HealthCheck(
            "temporary files", "problem", f"{bytes_text(free)} free in {folder}", "remove files, or set TMPDIR"
        )
    return HealthCheck("temporary files", "ok", f"{bytes_text(free)} free in {folder}")


def _host_name() -> HealthCheck:
    name, address = socket.gethostname(), own_address()
    if device := os.environ.get("GLOO_SOCKET_IFNAME"):
        fix = "unset it, unless the default route does not lead to the other hosts"
        return HealthCheck("network", "note", f"GLOO_SOCKET_IFNAME={device} is set", fix)
    if address.startswith("127."):
        text = f"{name} has no address besides the loopback device"
        return HealthCheck(
            "network", "note", text, "nothing, for runs on this host alone; otherwise bring up a network device"
        )
    return HealthCheck("network", "ok", f"{name} is reached at {address}")


def _slurm() -> HealthCheck:
    command = ["sinfo", "--noheader", "--format=%D %T"]
    fix = "nothing, if you do not use it; otherwise ask the administrator whether slurmctld runs"
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SLURM_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return HealthCheck("Slurm", "note", f"no answer within {_SLURM_SECONDS:.0f} s", fix)
    if answer.returncode:
        return HealthCheck("Slurm", "note", answer.stderr.strip(), fix)
    nodes = ", ".join(" ".join(line.split()) for line in answer.stdout.splitlines())
    return HealthCheck("Slurm", "ok", f"nodes: {nodes}")


EXTRAS = {
    "completion": "shtab",
    "data": "pyarrow",
    "hf": "transformers",
    "int8": "torchao",
    "mlflow": "mlflow-skinny",
    "params": "numba",
    "s3": "s3fs",
    "tensorboard": "tensorboard",
    "tune": "optuna",
    "wandb": "wandb",
}
"""Extras of onecurve, and a package of each."""


def extras_check() -> HealthCheck:
    """Which optional parts are installed."""
    there = [extra for extra, package in EXTRAS.items() if installed(package)]
    missing = [extra for extra in EXTRAS if extra not in there]
    text = f"{', '.join(there) or 'none'}" + (f" (not installed: {', '.join(missing)})" if missing else "")
    return HealthCheck("extras", "ok", text)
