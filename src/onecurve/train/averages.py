"""Exponential moving averages of the trained weights. Each rank averages the elements that it stores."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from onecurve.describe.optimizer_state import AVERAGE
from onecurve.device.local_tensor import LocalTensor


class Averages:
    """The averages of the weights of one optimizer, which are part of its state."""

    def __init__(self, decay: float, optimizer: torch.optim.Optimizer, local_tensors: Sequence[LocalTensor]) -> None:
        self._decay, self._optimizer = decay, optimizer
        self._tensors = [tensor.local for tensor in local_tensors if tensor.local.numel()]
        self._unused: dict[Tensor, Tensor] = {}
        """Averages of parameters that had no gradient yet. They must not be in the optimizer's state: the optimizer
        would take that for one that it has made."""

    @torch.no_grad()
    def begin_update(self) -> None:
        """Remember the weights of parameters that have no average yet although others have: after a resume, those that
        no step has used."""
        unknown = [tensor for tensor in self._tensors if self._average(tensor) is None]
        if len(unknown) < len(self._tensors):
            self._unused.update((tensor, tensor.detach().clone()) for tensor in unknown)

    @torch.no_grad()
    def update(self, skipped: Tensor | bool) -> None:
        """Take the weights after a step into account, unless it was skipped."""
        if skipped is True:
            return
        # After a step: before it, an optimizer takes a state that is not empty for one that it has made itself.
        for tensor in [tensor for tensor in self._unused if tensor.grad is not None]:
            self._optimizer.state[tensor][AVERAGE] = self._unused.pop(tensor)
        known = [(average, tensor) for tensor in self._tensors if (average := self._average(tensor)) is not None]
        for tensor in self._tensors:
            if self._average(tensor) is None:
                first = tensor.detach().clone()
                if tensor.grad is None:
                    self._unused[tensor] = first
                else:
                    self._optimizer.state[tensor][AVERAGE] = first
        if isinstance(skipped, Tensor):  # on the device: the host does not know yet
            weight = (1 - self._decay) * (1 - skipped.float())
            for average, tensor in known:
                average.lerp_(tensor.detach(), weight.to(average.dtype))
        elif known:
            averages, tensors = zip(*known, strict=True)
            torch._foreach_lerp_(averages, [tensor.detach() for tensor in tensors], 1 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Let the model have the averages instead of its weights, for a while."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def keep_in_place(self) -> None:
        """Let the model have the averages instead of its weights, which are given up."""
        self._swap()
        self._tensors = []

    def local_tensors(self, trained: Sequence[LocalTensor]) -> Iterator[tuple[LocalTensor, Tensor]]:
        """Each trained tensor of which this rank has elements, with its average; NaN if that was forgotten."""
        for tensor in trained:
            if tensor.local.numel():
                average = self._average(tensor.local)
                yield tensor, average if average is not None else torch.full_like(tensor.local, math.nan)

    @torch.no_grad()
    def _swap(self) -> None:
        for tensor in self._tensors:
            if (average := self._average(tensor)) is not None:  # not before the first step
                weights = tensor.detach().clone()
                tensor.copy_(average)
                average.copy_(weights)

    def _average(self, tensor: Tensor) -> Tensor | None:
        average: Tensor | None = self._optimizer.state.get(tensor, {}).get(AVERAGE, self._unused.get(tensor))
        return average
