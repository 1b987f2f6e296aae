"""The work of all devices of this process: queued on streams, and done only when something waits for it."""

import ctypes
import os
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from types import ModuleType

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fake_accelerator.order import Clock, Order, Stream
from fake_accelerator.report import Report, calling_line

Run = Callable[[], object]


@dataclass(frozen=True)
class Task:
    name: str
    run: Run
    blocks: frozenset[int]


class Simulator:
    """What csrc/simulator.h calls. Collectives are done in the order in which they were queued, whatever their stream,
    so that all ranks do them in the same order."""

    def __init__(self, extension: ModuleType, report: Report) -> None:
        self.report = report
        self._extension = extension
        self._order = Order(lambda text: report.add("unordered", what=text, line=calling_line()))
        self._tasks: defaultdict[Stream, deque[Task]] = defaultdict(deque)
        self._done: Counter[Stream] = Counter()
        self._events: dict[int, tuple[Stream, int, Clock]] = {}
        self._users: Counter[int] = Counter()
        """Number of queued tasks that use a block."""
        self._freed: set[int] = set()
        """Blocks that are released after the last task that uses them."""
        self._collectives: deque[tuple[Stream, int]] = deque()
        self._lock = threading.RLock()
        self._used_devices: set[int] = set()
        self._forked_in_use = False
        self._memory = int(os.environ.get("FAKE_ACCELERATOR_MEMORY", 8 << 30))
        self._leave_together = os.environ.get("FAKE_ACCELERATOR_LEAVE_TOGETHER") == "1"
        os.register_at_fork(before=self._before_fork, after_in_child=self._after_fork)

    # Devices

    def use_device(self, index: int) -> None:
        """The device is used from now on: this process must not be forked any more."""
        if self._forked_in_use:
            raise RuntimeError("Cannot re-initialize the fake accelerator in a forked subprocess")
        self._used_devices.add(index)

    def is_used(self, index: int) -> bool:
        return index in self._used_devices

    @property
    def is_initialized(self) -> bool:
        return bool(self._used_devices)

    @property
    def is_forked_in_use(self) -> bool:
        """True if this process was forked from one that had used a device."""
        return self._forked_in_use

    @property
    def memory(self) -> int:
        return self._memory

    def leaving_needs_all(self) -> bool:
        return self._leave_together

    # Tasks

    def queue(self, stream: Stream, name: str, run: Run, reads: Collection[int], writes: Collection[int]) -> None:
        """Give a task to a stream."""
        self.use_device(stream[0])
        with self._lock:
            self._order.add(stream, name, reads, writes)
            task = Task(name, run, frozenset((*reads, *writes)))
            self._users.update(task.blocks)
            self._tasks[stream].append(task)

    def queue_collective(
        self, name: str, device: int, current: int, own: int, reads: list[int], writes: list[int], run: Run
    ) -> None:
        """Give a task to the stream of a process group, after what the current stream has been given so far."""
        with self._lock:
            before, stream = (device, current), (device, own)
            self._wait_for(stream, before, self._order.queued(before), self._order.clock(before))
            position = self._order.queued(stream) + 1
            self._collectives.append((stream, position))
            self.queue(stream, name, lambda: self._in_order(stream, position, run), reads, writes)

    def drain(self, own: int) -> None:
        """Do all tasks of a process group, which is left."""
        with self._lock:
            for stream in [stream for stream in self._tasks if stream[1] == own]:
                self._run(stream, self._order.queued(stream))

    def drop(self, own: int) -> None:
        """Do nothing in place of the tasks of a process group, which is aborted."""
        with self._lock:
            self._collectives = deque(each for each in self._collectives if each[0][1] != own)
            for (_, stream), tasks in self._tasks.items():
                if stream == own:
                    for number, task in enumerate(tasks):
                        tasks[number] = replace(task, run=lambda: None)

    def is_idle(self, device: int, stream: int) -> bool:
        return self._done[device, stream] >= self._order.queued((device, stream))

    def queued_tasks(self) -> int:
        """Number of tasks that are not done yet."""
        return sum(map(len, self._tasks.values()))

    # Host waits

    def synchronize(self, device: int, stream: int, why: str) -> None:
        """The host waits for a stream, or for all of a device if `stream` is -1."""
        self.report.add("wait", why=why, line=calling_line())
        with self._lock:
            for each in [(device, stream)] if stream >= 0 else self._order.streams(device):
                self._run(each, self._order.queued(each))
                self._order.host_waits(self._order.clock(each))

    def synchronize_event(self, event: int) -> None:
        if event in self._events:
            stream, position, clock = self._events[event]
            with self._lock:
                if self._done[stream] < position:
                    self.report.add("wait", why="event", line=calling_line())
                    self._run(stream, position)
                self._order.host_waits(clock)

    def copy_bytes(self, to: int, source: int, size: int) -> None:
        """Copy when a storage is resized, at once."""
        self.synchronize(self._extension.current_device(), -1, "a storage with contents is resized")
        ctypes.memmove(to, source, size)

    # Events

    def record_event(self, event: int, device: int, stream: int) -> None:
        with self._lock:
            key = device, stream
            self._events[event] = key, self._order.queued(key), self._order.clock(key)

    def wait_event(self, event: int, device: int, stream: int) -> None:
        """A stream waits for an event; one that was never recorded is over."""
        with self._lock:
            if event in self._events:
                self._wait_for((device, stream), *self._events[event])

    def is_event_done(self, event: int) -> bool:
        if event not in self._events:
            return True
        stream, position, _ = self._events[event]
        return self._done[stream] >= position

    def elapsed_milliseconds(self, begin: int, end: int) -> float:
        """This device has no time of its own: a task takes a millisecond."""
        return float(self._events[end][1] - self._events[begin][1])

    def destroy_event(self, event: int) -> None:
        self._events.pop(event, None)

    # Memory

    def allocates(self, device: int, stream: int) -> int:
        """Memory is about to be allocated on a stream; return the device's bytes."""
        self.use_device(device)
        with self._lock:
            self._order.allocate((device, stream))
        return self._memory

    def freed(self, block: int, device: int, stream: int) -> bool:
        """Memory is freed; return True if queued tasks still use it, after which it is released."""
        with self._lock:
            unfinished = self._users[block] > 0
            self._order.free(block, (device, stream) if device >= 0 else None, unfinished)
            if unfinished:
                self._freed.add(block)
            return unfinished

    def record_stream(self, block: int, device: int, stream: int) -> None:
        with self._lock:
            self._order.record_stream(block, (device, stream))

    # Internals

    def _wait_for(self, stream: Stream, other: Stream, position: int, clock: Clock) -> None:
        """A stream waits until another one has done its task at `position`; `clock`: what is done then."""
        self._order.stream_waits(stream, clock)
        if stream != other and self._done[other] < position:
            self.queue(stream, "wait", lambda: self._run(other, position), (), ())

    def _run(self, stream: Stream, upto: int) -> None:
        """Do the tasks of a stream up to a position."""
        tasks = self._tasks[stream]
        while self._done[stream] < upto and tasks:
            task = tasks.popleft()
            with (
                torch._C._AutoDispatchBelowAutograd(),  # type: ignore[attr-defined]
                torch._C.DisableTorchFunction(),
                _disable_current_modes(),
            ):
                try:
                    task.run()
                finally:  # a task that fails is done too: those after it are not done in its place
                    self._done[stream] += 1
                    self._release_blocks(task)

    def _release_blocks(self, task: Task) -> None:
        for block in task.blocks:
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                if block in self._freed:
                    self._freed.remove(block)
                    self._extension.release(block)

    def _in_order(self, stream: Stream, position: int, run: Run) -> None:
        while self._collectives and self._collectives[0] != (stream, position):
            self._run(*self._collectives[0])
        self._collectives.popleft()
        run()

    def _before_fork(self) -> None:
        threads = len(os.listdir("/proc/self/task"))
        self.report.add("fork", threads=threads, devices=sorted(self._used_devices), line=calling_line())

    def _after_fork(self) -> None:
        self._forked_in_use = self.is_initialized
        self._used_devices.clear()
