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

    @torch.no_grad()
    def update(self, skipped: Tensor | bool) -> None:
        """Take the weights after a step into account, unless it was skipped."""
        if skipped is True:
            return
        # After a step: before it, an optimizer takes a state that is not empty for one that it has made itself.
        known = [tensor for tensor in self._tensors if AVERAGE in self._optimizer.state[tensor]]
        for tensor in self._tensors:
            if AVERAGE not in self._optimizer.state[tensor]:
                self._optimizer.state[tensor][AVERAGE] = tensor.detach().clone()
        averages = [self._average(tensor) for tensor in known]
        if isinstance(skipped, Tensor):  # on the device: the host does not know yet
            weight = (1 - self._decay) * (1 - skipped.float())
            for average, tensor in zip(averages, known, strict=True):
                average.lerp_(tensor.detach(), weight.to(average.dtype))
        elif averages:
            torch._foreach_lerp_(averages, [tensor.detach() for tensor in known], 1 - self._decay)

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
                missing = torch.full_like(tensor.local, math.nan)
                yield tensor, self._optimizer.state.get(tensor.local, {}).get(AVERAGE, missing)

    @torch.no_grad()
    def _swap(self) -> None:
        for tensor in self._tensors:
            if AVERAGE in self._optimizer.state.get(tensor, {}):  # not before the first step
                average = self._average(tensor)
                weights = tensor.detach().clone()
                tensor.copy_(average)
                average.copy_(weights)

    def _average(self, tensor: Tensor) -> Tensor:
        average: Tensor = self._optimizer.state[tensor][AVERAGE]
        return average
