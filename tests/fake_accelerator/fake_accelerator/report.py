"""What the device has noticed in this process: host waits, unordered accesses, mixed devices, forks."""

import json
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

_HERE = str(Path(__file__).parent)
_LIBRARIES = (_HERE, sysconfig.get_paths()["stdlib"] + os.sep)
_INSTALLED = os.sep + "site-packages" + os.sep
_OURS = os.sep + "onecurve" + os.sep

Entry = dict[str, Any]


class Report:
    """Entries in memory; also as lines of JSON in the folder that FAKE_ACCELERATOR_REPORT names, a file per process."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._folder = os.environ.get("FAKE_ACCELERATOR_REPORT")

    def add(self, kind: str, **fields: Any) -> None:
        entry = {"kind": kind, **fields}
        self.entries.append(entry)
        if self._folder:
            with Path(self._folder, f"{os.getpid()}.jsonl").open("a") as file:
                file.write(json.dumps(entry) + "\n")

    def of(self, kind: str) -> list[Entry]:
        return [entry for entry in self.entries if entry["kind"] == kind]

    def clear(self) -> None:
        self.entries.clear()


def calling_line(depth: int = 3) -> str:
    """The innermost lines outside of libraries, the innermost first."""
    lines: list[str] = []
    frame = sys._getframe(1)
    while frame is not None and len(lines) < depth:
        name = frame.f_code.co_filename
        installed = _INSTALLED in name and _OURS not in name
        if not installed and not name.startswith(_LIBRARIES) and not name.startswith("<"):
            lines.append(f"{os.sep.join(name.split(os.sep)[-2:])}:{frame.f_lineno}")
        frame = frame.f_back
    return " < ".join(lines)
