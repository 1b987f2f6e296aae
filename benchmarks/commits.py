"""Watches the checkpoints of a run: does a generation commit one after the next generation has begun?"""

import os
import threading
from pathlib import Path

_POLL_SECONDS = 0.002
_GENERATION, _CHECKPOINT = ".generation-", "step-"


class Commits:
    """What appears in a run's folder, with the file system's own times: when a generation began, and when one of its
    checkpoints came to exist under its final name."""

    def __init__(self, run: Path) -> None:
        self._folder = run / "checkpoints"
        self._begun: dict[str, float] = {}
        self._committed: dict[str, float] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def late(self) -> list[str]:
        """Stop watching; return the checkpoints that were committed after a later generation had begun."""
        self._is_over.set()
        self._thread.join()
        late = []
        for name, committed in self._committed.items():
            own = next((begun for generation, begun in self._begun.items() if generation in name), None)
            if own is not None and any(own < begun < committed for begun in self._begun.values()):
                late.append(name)
        return late

    @property
    def generations(self) -> int:
        return len(self._begun)

    def _watch(self) -> None:
        while not self._is_over.wait(_POLL_SECONDS):
            try:
                entries = [*os.scandir(self._folder)]
            except OSError:
                continue
            for entry in entries:
                self._take(entry)

    def _take(self, entry: "os.DirEntry[str]") -> None:
        """Note an entry when it is seen first: the time of its creation, or of its renaming, has not changed since."""
        if entry.name in self._committed or entry.name.removeprefix(_GENERATION) in self._begun:
            return
        try:
            created = entry.stat().st_ctime
        except OSError:  # removed since
            return
        if entry.name.startswith(_GENERATION):
            self._begun[entry.name.removeprefix(_GENERATION)] = created
        elif entry.name.startswith(_CHECKPOINT):
            self._committed[entry.name] = created
