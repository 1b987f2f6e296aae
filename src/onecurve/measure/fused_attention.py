"""Traces attention as accelerators compute it."""

from typing import Any

import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

_DROPOUT = 4
"""Position of the argument `dropout_p`."""


class FusedAttention(TorchFunctionMode):
    """While it is active, attention with dropout costs what it costs without.

    On accelerators one kernel computes both. The CPU has no such kernel with dropout: it computes, and keeps for
    backward, the matrix of all attention weights, which no accelerator does.
    """

    def __torch_function__(
        self, function: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function is F.scaled_dot_product_attention:
            if len(arguments) > _DROPOUT:
                arguments = (*arguments[:_DROPOUT], 0.0, *arguments[_DROPOUT + 1 :])
            else:
                kwargs["dropout_p"] = 0.0
        return function(*arguments, **kwargs)
