"""One collated micro-batch: the model's inputs, the loss's target and the number of samples."""

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.weighted import Weighted


@dataclass(frozen=True)
class LoadTime:
    """What it took to load samples, in one process."""

    seconds: float = 0.0
    cpu: float = 0.0
    """Seconds of CPU time."""
    storage: float = 0.0
    """Seconds of waiting for remote storage."""

    def __add__(self, other: "LoadTime") -> "LoadTime":
        return LoadTime(self.seconds + other.seconds, self.cpu + other.cpu, self.storage + other.storage)


@dataclass(frozen=True)
class MicroBatch:
    """The samples of one forward pass on one rank. `inputs` and `target` may be nested tuples, lists and dicts."""

    inputs: Any
    target: Any
    samples: int
    """Number of samples. 0 marks a filler batch: a rank without samples runs it only to join the collectives."""
    skipped: int = 0
    """Samples that belong here and were left out, because they are bad, or a filter drops them."""
    load: LoadTime = LoadTime()
    """What it took to load it."""

    def to(
        self,
        device: torch.device,
        dtype: torch.dtype | None = None,
        memory_format: torch.memory_format = torch.preserve_format,
    ) -> "MicroBatch":
        """Return a copy on the device.

        `dtype` applies to floating-point tensors only; `torch.channels_last` applies to 4-dimensional tensors only.
        """

        def move(leaf: Tensor) -> Tensor:
            # The cast comes after the copy: to cast on the host would leave pinned memory.
            leaf = leaf.to(device, non_blocking=True)
            if dtype is not None and leaf.is_floating_point():
                leaf = leaf.to(dtype)
            if memory_format is torch.channels_last and leaf.dim() == 4:
                return leaf.contiguous(memory_format=memory_format)
            return leaf

        return replace(self, inputs=map_tensors(move, self.inputs), target=map_tensors(move, self.target))

    def pin_memory(self) -> "MicroBatch":
        """Return a copy in pinned (page-locked) memory; torch's DataLoader calls this method."""
        inputs, target = (map_tensors(Tensor.pin_memory, values) for values in (self.inputs, self.target))
        return replace(self, inputs=inputs, target=target)

    def infer(self, model: nn.Module) -> Any:
        """Call the model without gradients, or with them if its forward differentiates by itself (MAML)."""
        try:
            with torch.no_grad():
                return self.forward(model)
        except UserCodeError as error:
            if "does not require grad" not in str(error):
                raise
        with torch.enable_grad():
            return pytree.tree_map_only(Tensor, Tensor.detach, self.forward(model))

    def forward(self, model: nn.Module) -> Any:
        """Call the model. A tuple or list becomes positional arguments, a dict becomes keyword arguments."""
        try:
            if isinstance(self.inputs, tuple | list):
                return model(*self.inputs)
            if isinstance(self.inputs, Mapping):
                return model(**self.inputs)
            return model(self.inputs)
        except OnecurveError:
            raise
        except Exception as error:
            shapes = pytree.tree_map(_description, self.inputs)
            raise UserCodeError(
                f"model: forward raised {type(error).__name__}: {error} (its input: {shapes})"
            ) from error


def map_tensors(change: Callable[[Tensor], Tensor], values: Any) -> Any:
    """Return a copy of nested tuples, lists and dicts with every tensor changed.

    A mapping of another class (a BatchEncoding of transformers) becomes a dict. Objects with a method `apply` that
    takes a function of a tensor (graphs of torch_geometric) are copied and changed too; other objects are passed on as
    they are.
    """

    def map_leaf(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return change(leaf)
        if isinstance(leaf, Mapping):
            return {name: map_tensors(change, value) for name, value in leaf.items()}
        if not isinstance(leaf, type) and callable(getattr(leaf, "apply", None)):
            return copy.copy(leaf).apply(change)
        return leaf

    return pytree.tree_map(map_leaf, values)


def _description(leaf: Any) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def as_micro_batch(collated: Any, samples: int) -> MicroBatch:
    """Build a MicroBatch from a collated pair `(input, target)`; raise OnecurveError for anything else."""
    if not isinstance(collated, tuple | list) or len(collated) != 2:
        actual = f"{len(collated)} values" if isinstance(collated, tuple | list) else type(collated).__name__
        raise OnecurveError(
            f"data: a batch must be a pair (input, target), got {actual}; return a pair from the dataset's "
            "__getitem__ (put several inputs into one tuple or dict), or pass a collate function: Job(collate=…)"
        )
    return MicroBatch(collated[0], collated[1], samples)


Objective = Callable[[Any, MicroBatch], Weighted]
"""A function (model output, micro-batch) → the loss as a sum and its count."""
