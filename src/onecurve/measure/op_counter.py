"""Counts what a forward and backward on fake tensors would do on one rank: FLOPs, bytes moved, collectives."""

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from onecurve.describe.profile import Collective, CollectiveKind, FlopKind, Load, When, Work

_FUNCTIONAL = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
}
"""What engines call that do not go through functional collectives."""


class OpCounter(TorchDispatchMode):
    """What is computed and sent while it is active, in local shapes: distributed tensors are seen through.

    Only what is done to fake tensors of `mode` counts: DTensor tries operations on others of its own, to learn shapes.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode
        self._flops: dict[When, Counter[FlopKind]] = {"forward": Counter(), "backward": Counter()}
        self._moved: Counter[When] = Counter()
        self._operations: Counter[When] = Counter()
        self._products: Counter[When] = Counter()
        self.collectives: list[Collective] = []
        self.matmul_output_bytes = 0
        """Bytes that products gave in forward."""
        self.when: When = "forward"

    @property
    def work(self) -> Work:
        return Work(self._load("forward"), self._load("backward"), tuple(self.collectives))

    def _load(self, when: When) -> Load:
        return Load(dict(self._flops[when]), self._moved[when], self._operations[when], self._products[when])

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented
        kwargs = kwargs or {}
        result = operation(*arguments, **kwargs)
        if not self._is_ours(arguments):
            return result
        if operation.namespace in ("_c10d_functional", "c10d"):
            self._see_collective(operation._schema.name, arguments, result)
        else:
            kind, flops = _flops(operation, arguments, kwargs, result)
            if flops:
                self._flops[self.when][kind] += flops
                self._products[self.when] += 1
                if self.when == "forward":
                    self.matmul_output_bytes += sum(
                        each.nbytes for each in pytree.tree_leaves(result) if isinstance(each, Tensor)
                    )
            if not operation.is_view:
                tensors = {id(x): x.nbytes for x in pytree.tree_leaves((arguments, result)) if isinstance(x, Tensor)}
                self._moved[self.when] += sum(tensors.values())
                self._operations[self.when] += 1
        return result

    def _is_ours(self, arguments: tuple[Any, ...]) -> bool:
        leaves = pytree.tree_leaves(arguments)
        return any(isinstance(each, FakeTensor) and each.fake_mode is self._mode for each in leaves)

    def _see_collective(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        name = _FUNCTIONAL.get(name, name)
        kind = next((each for each in get_args(CollectiveKind) if each in name), None)
        if kind is not None:
            tensors = [each for each in pytree.tree_leaves((arguments, result)) if isinstance(each, Tensor)]
            self.collectives.append(Collective(kind, max(each.nbytes for each in tensors), self.when))


def _flops(operation: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[FlopKind, int]:
    if "scaled_dot_product" in operation._schema.name:
        backward = "backward" in operation._schema.name
        shapes = [tuple(each.shape) for each in arguments[: 4 if backward else 3]]
        shapes = shapes if not backward else [shapes[0], *_like_heads(shapes[1:])]
        count = sdpa_backward_flop_count if backward else sdpa_flop_count
        return "attention", int(count(*(shapes if backward else _like_heads(shapes))))
    found: Callable[..., int] | None = flop_registry.get(operation._overloadpacket)
    flops = int(found(*arguments, **kwargs, out_val=result)) if found is not None else 0
    return "convolution" if "convolution" in operation._schema.name else "matrix", flops


def _like_heads(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Grouped heads of keys and values are each used by several of the queries."""
    query, *others = shapes
    return [query, *((each[0], query[1], *each[2:]) for each in others)]
