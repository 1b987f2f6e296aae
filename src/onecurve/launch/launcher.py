"""A rank's view of the process that launched it: it gives assignments, asks to stop or to leave, and is told how they
end."""

import gc
import select
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from queue import SimpleQueue
from typing import TYPE_CHECKING, NoReturn

from onecurve.describe.assignment import Assignment
from onecurve.describe.convert import from_plain
from onecurve.describe.errors import CorruptedReplicaError, OnecurveError, SignalName
from onecurve.describe.row_servers import RowServerAddress
from onecurve.device.snapshot_memory import SnapshotMemory
from onecurve.launch.failure_report import lost_connection, report_of
from onecurve.launch.message_socket import Message, MessageSocket
from onecurve.launch.position import line_of
from onecurve.launch.rank_page import RankPage
from onecurve.launch.snapshot_source import KeyValues, SnapshotSource
from onecurve.launch.stack_dump import answer_signal
from onecurve.launch.wait_share import WaitShare

if TYPE_CHECKING:
    from onecurve.device.waiting import Progress

_REPEAT_SECONDS = 0.05
"""gloo may still be connecting when the connections are cut, so they are cut again until the rank has left."""

_SAMPLE_SECONDS = 0.05
"""How often the rank says how far it is."""
_SAMPLES_PER_LINE = 20
"""How seldom it also says which line it executes."""


class LeaveError(Exception):
    """The rank leaves the generation: another rank or a host is lost, or the run is to go on in another one."""


class Launcher:
    """The other end of a rank's socket. Calling it returns True once the launcher has asked the rank to stop."""

    def __init__(self, channel: MessageSocket) -> None:
        self._channel = channel
        self._sending = threading.Lock()
        self._assignments: SimpleQueue[tuple[Assignment, Mapping[int, SnapshotMemory]] | None] = SimpleQueue()
        self._row_servers: SimpleQueue[RowServerAddress | None] = SimpleQueue()
        self._received: dict[int, SnapshotMemory] = {}
        self._here: Mapping[int, SnapshotMemory] = {}
        """The snapshots of this host that the generation continues from, by the rank that wrote them."""
        self._has_partner = False
        self.snapshots: SnapshotSource | None = None
        """The snapshots that the generation continues from."""
        self._watcher: threading.Thread | None = None
        self._stop: SignalName | None = None
        self._generation = 0
        self._leave = -1
        """The newest generation that this rank was told to leave."""
        self._regroup = -1
        """The newest generation that is to hand over to another one."""
        self._wait_share = WaitShare()
        self._disconnect: Callable[[], object] = lambda: None
        self._progress: Callable[[int], Progress] | None = None
        self._failure: Message | None = None
        """Why the last generation has ended, until the launcher is told."""
        self._is_outside = threading.Event()
        self._is_outside.set()
        self._entering = threading.Lock()
        """Held while a generation is entered, and while connections are cut."""
        page = RankPage.create()
        self._channel.send({"page": True}, page)
        self.page = RankPage(page)
        self._channel.send({"stack": True}, answer_signal())

    def assignments(self) -> Iterator[Assignment]:
        """Wait for the next generation and yield it; end when there is none."""
        self._say_that_it_has_left()
        while (message := self._next()) is not None:
            assignment, self._here = message
            yield assignment
            self._say_that_it_has_left()

    @contextmanager
    def taking_part(
        self,
        assignment: Assignment,
        store: KeyValues | None,
        disconnect: Callable[[], object],
        progress: "Callable[[int], Progress] | None" = None,
    ) -> Iterator[None]:
        """Take part in a generation inside; an error that only follows from the loss of another rank ends it here.

        The rank can then take part in the next one. `store`: of the generation. `disconnect`: makes every collective of
        this process raise. `progress`: says how far a thread of it is.
        """
        self.page.begin_generation()
        self._wait_share = WaitShare()
        self._has_partner = assignment.has_partner
        self.snapshots = SnapshotSource(assignment, self._here, store)
        with self._entering:
            self._generation, self._disconnect, self._progress = assignment.generation.number, disconnect, progress
            self._is_outside.clear()
        try:
            self._raise_if_leaving()
            yield
        except Exception as error:
            follows = self._is_leaving or lost_connection(error) or isinstance(error, LeaveError)
            if not follows or isinstance(error, CorruptedReplicaError):  # which never follows from another failure
                raise
            self._failure = {**report_of(error), "lost_connection": True, "is_input_error": False}
        finally:
            self._is_outside.set()
            self._disconnect, self._progress = lambda: None, None
            self.snapshots.close()

    def on_join(self) -> None:
        """Heed the launcher from now on even while this rank waits for others, and announce this host's snapshots.

        This starts threads: fork before it.
        """
        if self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="onecurve watcher", daemon=True)
            self._watcher.start()
        if self.snapshots is not None:
            self.snapshots.announce()

    def share(self, slot: int, memory: SnapshotMemory) -> None:
        """Let the launcher keep the memory of a snapshot when this process is gone."""
        self._send({"slot": slot, "generation": self._generation, "event": "shared"}, memory.descriptor)

    def completed(self, slot: int) -> None:
        """Say that the memory of a slot holds a complete snapshot."""
        if self._has_partner:
            self._send({"slot": slot, "generation": self._generation, "event": "completed"})

    def is_copied(self, step: int) -> bool:
        """True if the snapshot of this step is also on another host, or is not to be copied."""
        return not self._has_partner or self.page.is_copied(self._generation, step)

    @property
    def is_regroup_asked(self) -> bool:
        """True if the run is to go on in another generation, from the next snapshot on."""
        return self._regroup == self._generation

    def hand_over(self) -> NoReturn:
        """Leave the generation, after a snapshot."""
        raise LeaveError("the run goes on in another generation")

    def waited(self) -> float | None:
        """Share of its time that this rank waits for others, asked at the end of a step's rounds; None if that is not
        known."""
        progress = self._progress
        if progress is None or self._watcher is None:
            return None
        return self._wait_share.at_end_of_rounds(progress(threading.main_thread().ident or 0).collectives)

    def straggles(self, speed: float, seconds: float) -> None:
        """Say that the others wait for this rank most of the time: its speed, where they have 1, and for how long.

        `seconds` is 0 if they no longer do.
        """
        self._send({"straggles": {"speed": speed, "seconds": seconds}})

    def row_servers(self, count: int) -> RowServerAddress:
        """Have at least so many row servers on this host; return where they are found."""
        self._send({"row_servers": count})
        while self._watcher is None and self._row_servers.empty():
            self._take(self._channel.receive())
        address = self._row_servers.get()
        if address is None:
            raise OnecurveError("the launcher is gone")
        return address

    def say(self, text: str) -> None:
        """Show a short text to the user."""
        self._send({"say": text})

    def finished(self, result: str) -> None:
        """Say that this generation's work is done."""
        self._send({"result": result})

    def failed(self, error: BaseException) -> None:
        """Say that this rank cannot go on."""
        self._send({"failure": report_of(error)})

    def __call__(self) -> bool:
        """Asked once per step. Raises LeaveError if the rank was told to leave."""
        self._read_waiting()
        self._raise_if_leaving()
        return self._stop is not None or self._channel.is_closed

    @property
    def signal(self) -> SignalName:
        """The signal that requested the stop; another rank may have received it."""
        self._read_waiting()
        return self._stop or ("SIGKILL" if self._channel.is_closed else "SIGINT")

    @property
    def _is_leaving(self) -> bool:
        return self._leave == self._generation

    def _raise_if_leaving(self) -> None:
        if self._is_leaving:
            raise LeaveError("told to leave the generation")

    def _say_that_it_has_left(self) -> None:
        """Called when nothing handles the error any more that has ended the last generation.

        Its traceback holds the model and its process groups. They are closed before the launcher is told: gloo may hang
        when it closes a group whose connections were cut, and only a rank that has not left in time is replaced.
        """
        if self._failure is not None:
            gc.collect()
            self._send({"failure": self._failure})
            self._failure = None

    def _next(self) -> tuple[Assignment, Mapping[int, SnapshotMemory]] | None:
        while self._watcher is None and self._assignments.empty():
            self._take(self._channel.receive())
        return self._assignments.get()

    def _read_waiting(self) -> None:
        if self._watcher is None:
            for message in self._channel.receive_waiting():
                self._take(message)

    def _watch(self) -> None:
        """Take in what the launcher says, and let it know where this rank is."""
        main = threading.main_thread().ident
        assert main is not None
        while not self._channel.is_closed:
            if not select.select([self._channel.fileno()], [], [], _SAMPLE_SECONDS)[0]:
                self._sample(main)
                continue
            for message in self._channel.receive_waiting():
                self._take(message)
                if "leave" in message:
                    self._cut_until_left()
        self._take(None)

    def _cut_until_left(self) -> None:
        """Cut the connections until the rank has left the generation; never those of the next one, which it may enter
        at any moment."""
        while True:
            with self._entering:
                if not self._is_leaving or self._is_outside.is_set():
                    return
                self._disconnect()
            self._is_outside.wait(_REPEAT_SECONDS)

    def _sample(self, thread: int) -> None:
        page, progress = self.page, self._progress
        if progress is not None:
            now = progress(thread)
            page.collectives, page.common, page.waits = now.collectives, now.common, now.waits
            self._wait_share.add(now.collectives, now.waits)
        page.samples += 1
        if page.samples % _SAMPLES_PER_LINE == 0:
            page.line = line_of(thread)

    def _take(self, message: Message | None) -> None:
        """Take in a message; None if the launcher is gone."""
        if message is None:
            self._assignments.put(None)
            self._row_servers.put(None)
        elif "row_servers" in message:
            self._row_servers.put(from_plain(RowServerAddress, message["row_servers"], "row servers"))
        elif "assignment" in message:
            snapshots, self._received = self._received, {}
            self._assignments.put((from_plain(Assignment, message["assignment"], "assignment"), snapshots))
        elif "snapshot_of" in message:
            self._received[message["snapshot_of"]] = SnapshotMemory(self._channel.take_descriptor())
        elif "leave" in message:
            self._leave = message["leave"]
        elif "regroup" in message:
            self._regroup = message["regroup"]
        else:
            self._stop = message["stop"]

    def _send(self, message: Message, descriptor: int | None = None) -> None:
        with self._sending:
            self._channel.send(message, descriptor)
