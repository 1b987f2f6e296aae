"""Shapes of operations that run on real tensors but that torch refuses on fake ones."""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_impls import op_implementations_dict
from torch._subclasses.fake_tensor import FakeTensorMode

_grouped_mm = torch.ops.aten._grouped_mm.default


@cache
def register_fake_operations() -> None:
    """Register the shapes with torch's fake tensors. Calls after the first one do nothing."""
    op_implementations_dict.setdefault(_grouped_mm, _grouped_mm_shape)


def _grouped_mm_shape(
    mode: FakeTensorMode,
    _: Any,
    a: Tensor,
    b: Tensor,
    offs: Tensor | None = None,
    bias: Tensor | None = None,  # noqa: ARG001 (the operation has it, the shape does not depend on it)
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The product of each group of rows with its own matrix; torch knows its shape for bf16 only.

    The groups are the first dimension of a 3-dimensional operand. If both operands have two dimensions, `offs` cuts the
    dimension over which is summed, and the result has one matrix per group.
    """
    shape = [a.shape[-2], b.shape[-1]]
    if a.dim() == b.dim():
        groups = a.shape[0] if offs is None else offs.shape[0]
        shape = [groups, *shape]
    with mode:
        return a.new_empty(shape, dtype=out_dtype or a.dtype)
