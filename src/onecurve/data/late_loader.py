"""torch's DataLoader in two parts: its workers are forked first, and its threads start later.

A process with several threads must not fork, and torch's loader starts threads together with its workers: one that
sends them their tasks, and on accelerators one that copies batches into pinned memory. A second loader would fork after
that.
"""

import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data._utils.pin_memory import _pin_memory_loop
from torch.utils.data.dataloader import _BaseDataLoaderIter, _MultiProcessingDataLoaderIter


class LateLoader(DataLoader[Any]):
    """A DataLoader with persistent workers. `fork` starts them; the first `iter` starts threads and reads ahead.

    `pins`: batches are in pinned memory, from which alone a copy to an accelerator does not make the host wait.
    """

    def __init__(self, *arguments: Any, pins: bool, **options: Any) -> None:
        self.pins = pins
        super().__init__(*arguments, persistent_workers=True, **options)

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
        super().__init__(loader)

    def _reset(self, loader: LateLoader, first_iter: bool = False) -> None:
        if first_iter:  # the constructor has forked the workers and would now give them tasks
            self._workers_status = [True] * self._num_workers  # for an end before the first task
            return
        is_first, self._has_begun = not self._has_begun, True
        if is_first and loader.pins:
            self._start_pinning()
        super()._reset(loader, is_first)

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
