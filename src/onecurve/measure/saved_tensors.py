"""Counts the tensors that autograd saves for backward."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass
class SavedTensors:
    """The storages that autograd saves on this rank, except those of the model's own parameters and buffers.

    A storage counts once, however many saved tensors are views of it.
    """

    model: nn.Module
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state = (*self.model.parameters(), *self.model.buffers())
        self._model_storages = {_storage(tensor)._cdata for tensor in state}

    @property
    def nbytes(self) -> int:
        return sum(storage.nbytes() for storage in self.storages.values())

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        """A context manager: what autograd saves while it is active is added."""
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.add(tensor)
        return tensor

    def add(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage._cdata not in self._model_storages:
            self.storages[storage._cdata] = storage

    def has(self, tensor: Tensor) -> bool:
        return _storage(tensor)._cdata in self.storages

    def discard(self, other: "SavedTensors") -> None:
        """Remove the storages that `other` has too."""
        for key in other.storages:
            self.storages.pop(key, None)

    def discard_chained_outputs(self, block_input: Tensor, outputs: Iterable[Tensor]) -> None:
        """Remove a block's outputs if its input is saved.

        In a chain of blocks the output of one is the input of the next, where it is counted.
        """
        if self.has(block_input):
            for output in outputs:
                self.storages.pop(_storage(output)._cdata, None)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()
