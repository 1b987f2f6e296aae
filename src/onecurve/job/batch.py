"""One collated micro-batch: what the model takes, what the loss takes, and of how many samples it was made."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.job.weighted import Weighted


@dataclass(frozen=True)
class MicroBatch:
    inputs: Any
    target: Any
    samples: int
    """0 for a filler: a rank that has no sample left but must join the others' collectives."""

    def to(
        self,
        device: torch.device,
        dtype: torch.dtype | None = None,
        layout: torch.memory_format = torch.preserve_format,
    ) -> "MicroBatch":
        """On the device; `dtype` converts what is floating point, `layout` what has four dimensions."""

        def move(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            leaf = leaf.to(device, dtype if leaf.is_floating_point() else None, non_blocking=True)
            return leaf.contiguous(memory_format=layout) if layout is torch.channels_last and leaf.dim() == 4 else leaf

        return MicroBatch(pytree.tree_map(move, self.inputs), pytree.tree_map(move, self.target), self.samples)

    def pin_memory(self) -> "MicroBatch":
        """In memory that a device can copy from by itself; torch's DataLoader calls this."""
        pin = lambda leaf: leaf.pin_memory() if isinstance(leaf, Tensor) else leaf  # noqa: E731
        return MicroBatch(pytree.tree_map(pin, self.inputs), pytree.tree_map(pin, self.target), self.samples)

    def forward(self, model: nn.Module) -> Any:
        """Call the model: a tuple or list is spread into positional arguments, a dict into keywords."""
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


def _description(leaf: Any) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def as_micro_batch(collated: Any, samples: int) -> MicroBatch:
    if not isinstance(collated, tuple | list) or len(collated) != 2:
        what = f"{len(collated)} values" if isinstance(collated, tuple | list) else f"a {type(collated).__name__}"
        raise OnecurveError(
            f"data: a batch must be a pair (input, target), this one is {what}; return a pair from the dataset's "
            "__getitem__ (put several inputs into a tuple or dict of their own), or give Job a collate function"
        )
    return MicroBatch(collated[0], collated[1], samples)


Objective = Callable[[Any, MicroBatch], Weighted]
"""The model's output and the micro-batch it came from → the loss as a sum and its count."""
