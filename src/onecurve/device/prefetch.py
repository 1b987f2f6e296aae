"""Copies micro-batches to the device one round ahead of the computation.

On accelerators the copies run from pinned memory on a separate stream. That has run on the simulated accelerator of the
tests, and not on a GPU.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.device.device import Device

T = TypeVar("T")


class Prefetcher:
    """Copies items to the device, on accelerators while the item before is being computed."""

    def __init__(self, device: Device) -> None:
        self._stream = torch.Stream(device.torch_device) if device.asynchronous else None

    def ahead(self, items: Sequence[T], to_device: Callable[[T], T], tensors: Callable[[T], Any]) -> Iterator[T]:
        """Yield `to_device(item)` for each item, after starting the copy of the next item.

        `tensors(item)` returns the tensors of an item, in any nesting.
        """
        if self._stream is None:
            yield from map(to_device, items)
            return
        next_copy = self._start(items[0], to_device)
        for index in range(len(items)):
            item, copied = next_copy
            if index + 1 < len(items):
                next_copy = self._start(items[index + 1], to_device)
            current = torch.accelerator.current_stream()
            current.wait_event(copied)
            for leaf in pytree.tree_leaves(tensors(item)):
                if isinstance(leaf, Tensor):
                    leaf.record_stream(current)  # its memory must not be reused before this stream has finished
            yield item

    def _start(self, item: T, to_device: Callable[[T], T]) -> tuple[T, torch.Event]:
        assert self._stream is not None
        with self._stream:
            return to_device(item), self._stream.record_event()
