"""Processes that the kernel has killed because there was no memory left."""

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_RECENT_SECONDS = 15.0
"""A process's end is noticed within this time, also on a busy machine: a large process takes long to end."""


def kernel_kills(root: Path = Path("/")) -> int:
    """How many processes of this control group the kernel has killed for want of memory; of the whole machine, if that
    is not known."""
    with suppress(OSError, ValueError):
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if number == "0":
                counter = root / "sys/fs/cgroup" / path.strip("/") / "memory.events"
            elif "memory" in controllers.split(","):
                counter = root / "sys/fs/cgroup/memory" / path.strip("/") / "memory.oom_control"
            else:
                continue
            with suppress(OSError, KeyError):
                return _fields(counter)["oom_kill"]
    with suppress(OSError, KeyError):
        return _fields(root / "proc/vmstat")["oom_kill"]
    return 0


def _fields(path: Path) -> dict[str, int]:
    """The lines `name number` of a file."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}


def prefer_as_victim() -> None:
    """Have the kernel kill this process, and those that it forks, before the one that launched it."""
    path = Path("/proc/self/oom_score_adj")
    with suppress(OSError, ValueError):
        path.write_text(str(max(500, int(path.read_text()))))


class KernelKills:
    """The latest processes that the kernel has killed. `look` is called every now and then."""

    def __init__(self, count: Callable[[], int] = kernel_kills, clock: Callable[[], float] = time.monotonic) -> None:
        self._count, self._clock = count, clock
        self._known = count()
        self._times: list[float] = []
        """When each kill was seen that no process is known for yet."""

    def look(self) -> None:
        """Take in new kills."""
        now = self._count()
        self._times += [self._clock()] * max(0, now - self._known)
        self._known = now

    def explain(self) -> bool:
        """True if a process that was killed is likely one of these; each explains one process."""
        self.look()
        self._times = [seen for seen in self._times if self._clock() - seen < _RECENT_SECONDS]
        if not self._times:
            return False
        self._times.pop(0)
        return True
