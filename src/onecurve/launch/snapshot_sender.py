"""Sends the snapshots of this host's ranks to the keeper of another host, in a thread."""

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

from onecurve.coordination.errors import CoordinationError
from onecurve.coordination.sealed_socket import SealedSocket
from onecurve.describe.generation import StoreAddress
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.remote_snapshot import send_snapshot

_CONNECT_SECONDS = 10.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Task:
    rank: int
    slot: int
    memory: SnapshotMemory
    on_kept: Callable[[int], None]


class SnapshotSender:
    """One per generation."""

    def __init__(self, generation: int, partner: StoreAddress) -> None:
        """`partner`: the keeper that keeps the copies."""
        self._generation, self._partner = generation, partner
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        threading.Thread(target=self._run, name="onecurve snapshot sender", daemon=True).start()

    def send(self, rank: int, slot: int, memory: SnapshotMemory, on_kept: Callable[[int], None]) -> None:
        """Send a snapshot. `on_kept`: called in the thread, with the step, once the other keeper has it."""
        self._tasks.put(_Task(rank, slot, memory, on_kept))

    def close(self) -> None:
        self._tasks.put(None)

    def _run(self) -> None:
        keeper: SealedSocket | None = None
        try:
            while (task := self._tasks.get()) is not None:
                if keeper is None:
                    key = bytes.fromhex(self._partner.key)
                    keeper = SealedSocket.connect(self._partner.host, self._partner.port, key, _CONNECT_SECONDS)
                step = send_snapshot(keeper, self._generation, task.rank, task.slot, task.memory)
                if step is not None:
                    task.on_kept(step)
        except (OSError, CoordinationError) as error:
            # If the other host is gone, the generation ends; until then no further snapshot is taken.
            _log.warning("snapshots cannot be sent to %s: %s", self._partner.host, error)
        finally:
            if keeper is not None:
                keeper.close()
