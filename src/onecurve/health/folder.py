"""Checks of a folder for runs: can it be written, linked and locked as a run needs it?"""

import fcntl
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from onecurve.describe.health import HealthCheck
from onecurve.describe.units import bytes_text

_SPACE = 2**30


def folder_checks(folder: Path) -> Iterator[HealthCheck]:
    """Try in the folder what a run does there. Leaves nothing in it."""
    name = f"folder {folder}"
    probe = folder / f".doctor-{secrets.token_hex(8)}"
    other = probe.with_suffix(".linked")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _write(probe)
        os.link(probe, other)  # how the first host of a run is chosen
        with probe.open("rb") as opened:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)  # how a second run in the folder is refused
        probe.rename(other)
    except OSError as error:
        fix = "use another folder; on a network file system, allow hard links and locks"
        yield HealthCheck(name, "problem", f"{error.strerror or error}", fix)
        return
    finally:
        for path in (probe, other):
            with suppress(OSError):
                path.unlink()
    free = shutil.disk_usage(folder).free
    if free < _SPACE:
        yield HealthCheck(name, "problem", f"{bytes_text(free)} free", "checkpoints need more: remove files")
    else:
        yield HealthCheck(name, "ok", f"can be written, linked and locked; {bytes_text(free)} free")


def _write(path: Path) -> None:
    with path.open("xb") as opened:
        opened.write(b"onecurve")
        opened.flush()
        os.fsync(opened.fileno())
