"""Watches the checkpoints of a run: does a generation commit one after the next generation has begun?"""

import math
import os
import threading
import time
from pathlib import Path

_POLL_SECONDS = 0.002
_GENERATION, _CHECKPOINT = ".generation-", "step-"


class Commits:
    """What appears in a run's folder.

    A generation begins by ending the one before, whose folder then disappears. It is taken to have begun when that was
    seen, or at the time of its own folder, if that is earlier: both are after it has begun. A checkpoint is committed
    when its folder gets its final name, which the file system knows.
    """

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
        current, ended_at = "", math.inf
        while not self._is_over.wait(_POLL_SECONDS):
            try:
                changed = {entry.name: entry.stat().st_ctime for entry in os.scandir(self._folder)}
            except OSError:  # it does not exist yet, or an entry has disappeared meanwhile
                continue
            if current and current not in changed:
                current, ended_at = "", min(ended_at, time.time())
            for name, time_of in changed.items():
                if name.startswith(_CHECKPOINT):
                    self._committed.setdefault(name, time_of)
                elif name.startswith(_GENERATION) and name.removeprefix(_GENERATION) not in self._begun:
                    self._begun[name.removeprefix(_GENERATION)] = min(time_of, ended_at)
                    current, ended_at = name, math.inf
