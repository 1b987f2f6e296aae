"""torch's DataLoader in two parts: its workers are forked first, and its threads start later.

A process with several threads must not fork, and torch's loader starts threads together with its workers: one that
sends them their tasks, and on accelerators one that copies batches into pinned memory. A second loader would fork after
that.
"""

import itertools
import queue
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch._C import _remove_worker_pids
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import _pin_memory_loop
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter

MOST_AHEAD = 16
_AHEAD_BYTES = 256 << 20


class LateLoader(DataLoader[Any]):
    """A DataLoader with persistent workers. `fork` starts them; the first `iter` starts threads and reads ahead.

    `pins`: batches are in pinned memory, from which alone a copy to an accelerator does not make the host wait.
    `active`: so many of the workers get tasks; set it at any time. Batches are read ahead, so that one that takes long
    does not stall the training: `MOST_AHEAD` of them, if they take little memory.
    """

    def __init__(self, *arguments: Any, pins: bool, active: int, **options: Any) -> None:
        self.pins, self.active = pins, active
        self.batch_bytes: int | None = None
        """Of one batch; None if that is not known yet."""
        super().__init__(*arguments, persistent_workers=True, prefetch_factor=MOST_AHEAD, **options)

    def check_worker_number_rationality(self) -> None:
        """torch warns if there are more workers than cores. How many of them work is measured."""

    @property
    def ahead(self) -> int:
        """Batches that are being read, or are read and not used yet."""
        room = _AHEAD_BYTES // max(1, self.batch_bytes) if self.batch_bytes is not None else 0
        return max(2 * self.active, min(MOST_AHEAD, room))

    def fork(self) -> Iterator[Any]:
        """Start the workers; return the iterator that owns them, which `iter` returns too.

        Call this once, before the process has threads and before it uses an accelerator.
        """
        return iter(self)

    def _get_iterator(self) -> _BaseDataLoaderIter:
        return _LateIterator(self)


class _LateIterator(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: LateLoader) -> None:
        self._has_begun = False
        self._loader = loader
        super().__init__(loader)

    def _reset(self, loader: LateLoader, first_iter: bool = False) -> None:
        if first_iter:  # the constructor has forked the workers and would now give them tasks
            self._workers_status = [True] * self._num_workers  # for an end before the first task
            return
        is_first, self._has_begun = not self._has_begun, True
        if is_first and loader.pins:
            self._start_pinning()
        super()._reset(loader, is_first)

    def _try_put_index(self) -> None:
        """Give tasks to those workers that are to work, each to the one that has the least to do."""
        while self._send_idx - self._rcvd_idx < self._loader.ahead:
            waiting = Counter(task[0] for task in self._task_info.values() if len(task) == 1)
            chosen = min(range(self._loader.active), key=lambda worker: waiting[worker])
            self._worker_queue_idx_cycle = itertools.cycle([chosen])
            sent = self._send_idx
            super()._try_put_index()
            if sent == self._send_idx:  # there are no more
                return

    def _shutdown_workers(self) -> None:
        """Called when the iterator is no longer used. The workers end by a signal of their own.

        torch would send them messages here. When the garbage collector calls this, it may have closed the queues
        already: their threads would then close files that are somebody else's by now.
        """
        if self._pin_memory:
            self._pin_memory_thread_done_event.set()
        if self._worker_pids_set:
            _remove_worker_pids(id(self))
            self._worker_pids_set = False

    def _start_pinning(self) -> None:
        """As torch's constructor does."""
        accelerator = torch.accelerator.current_accelerator()
        assert accelerator is not None
        self._pin_memory, self._pin_memory_device = True, accelerator.type
        self._pin_memory_thread_done_event = threading.Event()
        self._data_queue = queue.Queue()
        device = torch.accelerator.current_device_index()
        arguments = (
            self._worker_result_queue,
            self._data_queue,
            device,
            self._pin_memory_thread_done_event,
            self._pin_memory_device,
        )
        self._pin_memory_thread = threading.Thread(target=_pin_memory_loop, args=arguments, daemon=True)
        self._pin_memory_thread.start()
