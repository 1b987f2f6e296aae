"""Counts what a forward and backward on fake tensors would do on one rank: FLOPs and collectives."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from onecurve.describe.profile import Collective, CollectiveKind, Work

_aten = torch.ops.aten


class Count(TorchDispatchMode):
    """What is computed and sent while it is active, in local shapes: distributed tensors are seen through.

    Only what is done to fake tensors of `mode` counts: DTensor tries operations on others of its own, to learn shapes.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode
        self.flops = 0
        self.collectives: list[Collective] = []
        self.when: Literal["forward", "backward"] = "forward"

    @property
    def work(self) -> Work:
        return Work(self.flops, tuple(self.collectives))

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), named: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented
        named = named or {}
        result = operation(*arguments, **named)
        if not any(isinstance(each, FakeTensor) and each.fake_mode is self._mode for each in arguments):
            return result
        if operation.namespace == "_c10d_functional":
            self._see_collective(operation._schema.name, arguments[0], result)
        else:
            self.flops += _flops(operation, arguments, named, result)
        return result

    def _see_collective(self, name: str, argument: Any, result: Any) -> None:
        kind = next((each for each in get_args(CollectiveKind) if f"::{each}" in name), None)
        if kind is not None:
            self.collectives.append(Collective(kind, max(argument.nbytes, result.nbytes), self.when))


def _flops(operation: Any, arguments: tuple[Any, ...], named: dict[str, Any], result: Any) -> int:
    count: Callable[..., int] | None = flop_registry.get(operation._overloadpacket)
    if count is not None:
        return int(count(*arguments, **named, out_val=result))
    if operation is _aten._scaled_dot_product_flash_attention_for_cpu.default:  # torch counts only other devices'
        return int(sdpa_flop_count(*(_shape(each) for each in arguments[:3])))  # type: ignore[no-untyped-call]
    if operation is _aten._scaled_dot_product_flash_attention_for_cpu_backward.default:
        return int(sdpa_backward_flop_count(*(_shape(each) for each in arguments[:4])))  # type: ignore[no-untyped-call]
    return 0


def _shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(tensor.shape)
