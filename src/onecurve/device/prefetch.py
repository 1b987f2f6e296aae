"""Micro-batches on their way to the device: on accelerators copied from pinned memory on a stream of their own, one
round ahead of the computation. Written from torch's documentation of streams; it has not run on a GPU."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.device.device import Device

T = TypeVar("T")


class Prefetcher:
    def __init__(self, device: Device) -> None:
        self._stream = torch.Stream(device.torch_device) if device.asynchronous else None

    def ahead(self, items: Sequence[T], place: Callable[[T], T], tensors: Callable[[T], Any]) -> Iterator[T]:
        """Each item placed, the next one already on its way; `tensors` gives what of an item lies on the device."""
        if self._stream is None:
            yield from map(place, items)
            return
        coming = self._start(items[0], place)
        for number in range(len(items)):
            item, copied = coming
            if number + 1 < len(items):
                coming = self._start(items[number + 1], place)
            current = torch.accelerator.current_stream()
            current.wait_event(copied)
            for leaf in pytree.tree_leaves(tensors(item)):
                if isinstance(leaf, Tensor):
                    leaf.record_stream(current)  # its memory must not be used again before this stream is done with it
            yield item

    def _start(self, item: T, place: Callable[[T], T]) -> tuple[T, torch.Event]:
        assert self._stream is not None
        with self._stream:
            return place(item), self._stream.record_event()
