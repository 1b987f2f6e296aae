"""Let a forward pass on fake tensors continue where the model reads values, by assuming values.

Mixture-of-experts layers, for example, select tokens by their scores. The result is good for shapes and for
dependencies between tensors, not for values. Where the number of elements depends on values, the maximum is assumed; a
number that is read is 0. A trace that fails for this reason is refused with the module that needs the values.
"""

import sys
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.model.running_module import module_text, running_modules

_aten = torch.ops.aten
_SELECTING = (_aten.nonzero.default, _aten.masked_select.default)
_ZERO = {torch.bool: False, torch.float64: 0.0, torch.float32: 0.0, torch.float16: 0.0, torch.bfloat16: 0.0}


class DataDependentFallback(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A dispatch mode that handles data-dependent operations; enter it after (inside) a FakeTensorMode."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.selects_from_sharded = ""
        """An operation that selected elements of a sharded tensor by their values; empty if none did."""
        self._readers: list[nn.Module] = []
        """The modules that were running when a number was last read, innermost first."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        super().__exit__(kind, error, trace)  # type: ignore[no-untyped-call]
        if self._readers and isinstance(error, UserCodeError):
            cause = error.__cause__
            raise UserCodeError(
                f"{module_text(self._readers)}: it reads values of its tensors (with item(), or in a condition), and a "
                f"trace, which the axes 'tensor' and 'pipeline' need, has none. With zeros instead, forward raised "
                f"{type(cause).__name__}: {cause}. Use 'replicate' or 'shard'"
            ) from cause

    def __torch_dispatch__(
        self, operation: Any, _: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if operation is _aten._local_scalar_dense.default:
            self._readers = running_modules(sys._getframe(1))
            return _ZERO.get(arguments[0].dtype, 0)
        selects = operation in _SELECTING or (
            operation is _aten.index.Tensor and any(_is_mask(index) for index in arguments[1])
        )
        if selects and any(map(_is_sharded, pytree.tree_leaves(arguments))):
            self.selects_from_sharded = str(operation)
        if operation is _aten.nonzero.default:
            return _indices_of_all(arguments[0])
        if operation is _aten.masked_select.default:
            values, mask = torch.broadcast_tensors(*arguments)  # type: ignore[no-untyped-call]
            return (values + 0 * mask).reshape(-1)
        if selects:
            arguments = (arguments[0], [indices for index in arguments[1] for indices in _without_mask(index)])
        try:
            return operation(*arguments, **(kwargs or {}))
        except DynamicOutputShapeException:
            where = module_text(running_modules(sys._getframe(1)))
            raise OnecurveError(
                f"{where}: the shape of what {operation} returns depends on the values of the data, so the model "
                "cannot be traced, which the axes 'tensor' and 'pipeline' need; use 'replicate' or 'shard', or compute "
                "the same without this operation"
            ) from None


def _is_sharded(value: Any) -> bool:
    return isinstance(value, DTensor) and not all(placement.is_replicate() for placement in value.placements)


def _is_mask(index: Tensor | None) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _without_mask(index: Tensor | None) -> list[Tensor | None]:
    """Replace a mask by one index tensor per dimension; return any other index unchanged."""
    return list(_indices_of_all(index).unbind(1)) if index is not None and _is_mask(index) else [index]


def _indices_of_all(tensor: Tensor) -> Tensor:
    """The result of nonzero() as if no element were zero. It is computed from the tensor, so that dependencies on the
    tensor remain visible."""
    return tensor.reshape(-1, 1).expand(-1, tensor.dim()).to(torch.int64)
