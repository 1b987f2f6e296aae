"""What autograd keeps of a forward."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


@dataclass
class SavedTensors:
    """Storages that autograd keeps on this rank, but for the model's own."""

    model: nn.Module
    storages: dict[int, torch.UntypedStorage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        state = (*self.model.parameters(), *self.model.buffers())
        self._own = {_storage(each)._cdata for each in state}

    @property
    def size(self) -> int:
        return sum(each.nbytes() for each in self.storages.values())

    def hooks(self) -> torch.autograd.graph.saved_tensors_hooks:
        return torch.autograd.graph.saved_tensors_hooks(self._pack, lambda tensor: tensor)

    def _pack(self, tensor: Tensor) -> Tensor:
        self.add(tensor)
        return tensor

    def add(self, tensor: Tensor) -> None:
        storage = _storage(tensor)
        if storage._cdata not in self._own:
            self.storages[storage._cdata] = storage

    def has(self, tensor: Tensor) -> bool:
        return _storage(tensor)._cdata in self.storages

    def drop(self, other: "SavedTensors") -> None:
        for key in other.storages:
            self.storages.pop(key, None)

    def drop_chained(self, given: Tensor, returned: Iterable[Tensor]) -> None:
        """In a chain a block's output is what the next one is given, and counted there."""
        if self.has(given):
            for each in returned:
                self.storages.pop(_storage(each)._cdata, None)


def _storage(tensor: Tensor) -> torch.UntypedStorage:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    return local.untyped_storage()
