"""Counts what one rank would do in a forward and backward on fake tensors: FLOPs, bytes moved, collectives."""

from collections import Counter
from collections.abc import Callable
from typing import Any, get_args

from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from onecurve.describe.profile import Collective, CollectiveKind, ComputeLoad, Direction, FlopKind, Work

_C10D_COLLECTIVES = {
    "c10d::_allgather_base_": "all_gather",
    "c10d::_reduce_scatter_base_": "reduce_scatter",
    "c10d::allreduce_": "all_reduce",
}
"""Operators that are called by engines which do not use functional collectives (FSDP, DDP)."""


class OpCounter(TorchDispatchMode):
    """Counts operations and collectives while it is active; of DTensors it counts the operations on local tensors.

    Only operations on fake tensors of `mode` count: DTensor propagates shapes with fake tensors of another mode, which
    are not part of the computation. Set `when` to "backward" before running backward.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._mode = mode
        self._flops: dict[Direction, Counter[FlopKind]] = {"forward": Counter(), "backward": Counter()}
        self._bytes_moved: Counter[Direction] = Counter()
        self._operations: Counter[Direction] = Counter()
        self._matmuls: Counter[Direction] = Counter()
        self.collectives: list[Collective] = []
        self.matmul_output_bytes = 0
        """Bytes of the outputs of matrix products in forward."""
        self.when: Direction = "forward"

    @property
    def work(self) -> Work:
        """Everything counted so far."""
        return Work(self._load("forward"), self._load("backward"), tuple(self.collectives))

    def _load(self, when: Direction) -> ComputeLoad:
        return ComputeLoad(
            dict(self._flops[when]), self._bytes_moved[when], self._operations[when], self._matmuls[when]
        )

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if DTensor in types:
            return NotImplemented
        kwargs = kwargs or {}
        result = operation(*arguments, **kwargs)
        if operation.namespace == "prim" or not self._has_fake_tensor(arguments):  # prim.device reads metadata
            return result
        if operation.namespace in ("_c10d_functional", "c10d"):
            self._count_collective(operation._schema.name, arguments, result)
        else:
            kind, flops = _flops(operation, arguments, kwargs, result)
            if flops:
                self._flops[self.when][kind] += flops
                self._matmuls[self.when] += 1
                if self.when == "forward":
                    self.matmul_output_bytes += sum(tensor.nbytes for tensor in _tensors(result))
            if not operation.is_view:
                sizes = {id(tensor): tensor.nbytes for tensor in _tensors((arguments, result))}
                self._bytes_moved[self.when] += sum(sizes.values())
                self._operations[self.when] += 1
        return result

    def _has_fake_tensor(self, arguments: tuple[Any, ...]) -> bool:
        leaves = pytree.tree_leaves(arguments)
        return any(isinstance(leaf, FakeTensor) and leaf.fake_mode is self._mode for leaf in leaves)

    def _count_collective(self, name: str, arguments: tuple[Any, ...], result: Any) -> None:
        name = _C10D_COLLECTIVES.get(name, name)
        kind = next((kind for kind in get_args(CollectiveKind) if kind in name), None)
        if kind is not None:
            size = max(tensor.nbytes for tensor in _tensors((arguments, result)))
            self.collectives.append(Collective(kind, size, self.when))


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _flops(operation: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> tuple[FlopKind, int]:
    """FLOPs of an operation by torch's own formulas, 0 if it has none."""
    name = operation._schema.name
    if "scaled_dot_product" in name and "backward" in name:
        gradient, *qkv = (tuple(tensor.shape) for tensor in arguments[:4])
        return "attention", int(sdpa_backward_flop_count(gradient, *_expand_heads(qkv)))  # type: ignore[no-untyped-call]
    if "scaled_dot_product" in name:
        qkv = [tuple(tensor.shape) for tensor in arguments[:3]]
        return "attention", int(sdpa_flop_count(*_expand_heads(qkv)))  # type: ignore[no-untyped-call]
    if name == "aten::_grouped_mm":
        return "matrix", _grouped_mm_flops(*arguments[:2])
    formula: Callable[..., int] | None = flop_registry.get(operation._overloadpacket)
    flops = int(formula(*arguments, **kwargs, out_val=result)) if formula is not None else 0
    return "convolution" if "convolution" in name else "matrix", flops


def _grouped_mm_flops(a: Tensor, b: Tensor) -> int:
    """FLOPs of the products of groups of rows, each with its own matrix: every row is used once, whatever its group."""
    if a.dim() > b.dim():
        return 2 * b.numel() * a.shape[-2]
    return 2 * a.numel() * b.shape[-1]


def _expand_heads(shapes: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Give keys and values as many heads as queries: with grouped heads, each is used by several queries."""
    query, *keys_and_values = shapes
    return [query, *((shape[0], query[1], *shape[2:]) for shape in keys_and_values)]
