"""What is installed: the facts that a bug report needs."""

import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version

_NEEDED = ("numpy", "fsspec", "msgspec", "rich", "safetensors", "xxhash")
_OPTIONAL = (
    "mlflow-skinny",
    "numba",
    "optuna",
    "peft",
    "pyarrow",
    "s3fs",
    "tensorboard",
    "torchao",
    "transformers",
    "wandb",
    "zstandard",
)


def version_facts(onecurve_version: str) -> dict[str, str]:
    """Names and values, most important first. Imports torch."""
    import torch

    device = torch.accelerator.current_accelerator(check_available=True) if torch.accelerator.is_available() else None
    devices = f"{torch.accelerator.device_count()} × {device.type}" if device is not None else "CPU only"
    backends = [name for name in ("gloo", "nccl", "xccl", "mpi") if torch.distributed.is_backend_available(name)]
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return {
        "onecurve": onecurve_version,
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda or 'not built in'}; backends {', '.join(backends)})",
        "devices": devices,
        "cores": f"{len(os.sched_getaffinity(0))} of {os.cpu_count()}",
        "system": f"{system}, {_distribution()}",
        **{name: found for name in _NEEDED if (found := installed(name))},
        **{name: found for name in _OPTIONAL if (found := installed(name))},
    }


def installed(package: str) -> str:
    """The version of a package; empty if it is not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _distribution() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", "unknown distribution")
    except OSError:
        return "unknown distribution"
