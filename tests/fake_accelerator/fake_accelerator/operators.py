"""Operators of the device: each one is queued, and computed by the host's when its turn comes."""

import os
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fake_accelerator.report import calling_line
from fake_accelerator.rng import RandomStates
from fake_accelerator.streams import Simulator

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_aten = torch.ops.aten
_PRODUCTS = ("aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm")


class Operators:
    """The fallback of every operator that has no kernel of its own."""

    def __init__(self, name: str, extension: ModuleType, simulator: Simulator, states: RandomStates) -> None:
        self._name = name
        self._extension = extension
        self._simulator = simulator
        self._states = states
        self._order_by_rows = os.environ.get("FAKE_ACCELERATOR_ORDER_BY_ROWS") == "1"

    def register(self) -> list[torch.library.Library]:
        """Register all operators; they are gone when the result is."""
        aten, all_others = torch.library.Library("aten", "IMPL"), torch.library.Library("_", "IMPL")
        aten.impl("_copy_from", self.copy, "PrivateUse1")
        aten.impl("_local_scalar_dense", self.item, "PrivateUse1")
        for name in ("convolution_overrideable", "convolution_backward_overrideable"):
            aten.impl(name, self._convolution(getattr(_aten, name).default), "PrivateUse1")
        all_others.fallback(self.call, "PrivateUse1")
        return [aten, all_others]

    def call(self, operator: Any, *args: Any, **kwargs: Any) -> Any:
        """Queue an operator and return its outputs, whose memory is written later."""
        leaves = pytree.tree_leaves((args, kwargs))
        self._refuse_mixed_devices(operator, leaves)
        device = self._device_of(leaves)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            changed = _written(operator, args, kwargs)
            if not operator._schema.returns:
                return self._queue(operator, (args, kwargs), device, changed, {})
            try:
                meta_args, meta_kwargs = pytree.tree_map(_as_meta, (args, kwargs))
                meta_changed = _written(operator, meta_args, meta_kwargs)
                result = operator(*meta_args, **meta_kwargs)
            except (NotImplementedError, RuntimeError):  # the shapes of the outputs depend on values
                return self._call_now(operator, args, kwargs, device, changed)
            meta_outputs, form = pytree.tree_flatten(result)
            if not all(isinstance(output, Tensor | None) for output in meta_outputs):
                return self._call_now(operator, args, kwargs, device, changed)
            for real, meta in zip(changed, meta_changed, strict=True):
                if real.shape != meta.shape:
                    real.resize_(meta.shape)
            known = {id(meta): real for meta, real in zip(meta_changed, changed, strict=True)}
            outputs = [self._output(meta, known, device) for meta in meta_outputs]
            new = {n: outputs[n] for n, meta in enumerate(meta_outputs) if meta is not None and id(meta) not in known}
            self._queue(operator, (args, kwargs), device, changed, new)
            return pytree.tree_unflatten(outputs, form)

    def copy(self, source: Tensor, target: Tensor, non_blocking: bool = False) -> Tensor:
        """Copy within a device, or between a device and the host."""
        ours = [self._is_ours(tensor) for tensor in (source, target)]
        device = (source if ours[0] else target).device
        pinned = [not mine and tensor.is_pinned() for mine, tensor in zip(ours, (source, target), strict=True)]
        waits = not all(ours) and not (non_blocking and any(pinned) and source.dtype == target.dtype)
        if waits and ours[1]:
            source = source.detach().clone()
        start, end = self._on_host(source, clone=False), self._on_host(target, clone=False)
        reads = self._blocks([source] if ours[0] or pinned[0] else [])
        writes = self._blocks([target] if ours[1] or pinned[1] else [])
        self._simulator.queue(self._stream(device), "copy", lambda: end.copy_(start), reads, writes)
        if waits:
            pageable = " from pageable memory" if non_blocking and not any(pinned) else ""
            self._wait(device, f"copy to the {'device' if ours[1] else 'host'}{pageable}")
        return target

    def item(self, tensor: Tensor) -> Any:
        """Read a number."""
        self._wait(tensor.device, "item")
        return self._on_host(tensor).item()

    def _queue(
        self, operator: Any, arguments: Arguments, device: torch.device, changed: list[Tensor], new: dict[int, Tensor]
    ) -> None:
        host_args, host_kwargs = pytree.tree_map(self._on_host, arguments)
        targets = {n: self._on_host(output) for n, output in new.items()}
        name = operator._schema.name
        function = _product_by_rows if self._order_by_rows and name in _PRODUCTS else operator

        def run() -> None:
            found = pytree.tree_leaves(function(*host_args, **host_kwargs))
            for n, target in targets.items():
                if found[n].shape == target.shape:  # the host's batch norm returns no statistics in evaluation
                    target.copy_(found[n])

        if torch.Tag.nondeterministic_seeded in operator.tags:
            run = self._states.seeded(device.index, run)
        reads = self._blocks(leaf for leaf in pytree.tree_leaves(arguments) if self._is_ours(leaf))
        self._simulator.queue(self._stream(device), name, run, reads, self._blocks([*changed, *new.values()]))

    def _call_now(
        self, operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device, changed: list[Tensor]
    ) -> Any:
        self._wait(device, f"the result of {operator._schema.name} depends on values")
        host_args, host_kwargs = pytree.tree_map(self._on_host, (args, kwargs))
        result = operator(*host_args, **host_kwargs)
        if changed:
            return changed[0]
        return pytree.tree_map(lambda leaf: leaf.to(device) if isinstance(leaf, Tensor) else leaf, result)

    def _convolution(self, operator: Any) -> Callable[..., Any]:
        """The host calls convolutions otherwise."""
        if operator is _aten.convolution_overrideable.default:
            return lambda *args, **kwargs: self.call(_aten.convolution.default, *args, **kwargs)

        def backward(gradient: Tensor, inputs: Tensor, weight: Tensor, *others: Any) -> Any:
            bias_sizes = [gradient.shape[1]]
            return self.call(_aten.convolution_backward.default, gradient, inputs, weight, bias_sizes, *others)

        return backward

    def _refuse_mixed_devices(self, operator: Any, leaves: list[Any]) -> None:
        others = [
            leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > 0 and leaf.device.type != self._name
        ]
        if others:
            self._simulator.report.add("mixed", operator=str(operator), line=calling_line())
            raise RuntimeError(
                f"{operator}: Expected all tensors to be on the same device, but found at least two devices, "
                f"{self._name} and {others[0].device}!"
            )

    def _output(self, meta: Tensor | None, known: dict[int, Tensor], device: torch.device) -> Tensor | None:
        if meta is None or id(meta) in known:
            return None if meta is None else known[id(meta)]
        return torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype, device=device)

    def _device_of(self, leaves: list[Any]) -> torch.device:
        for leaf in leaves:
            if self._is_ours(leaf):
                return leaf.device
        named = [leaf for leaf in leaves if isinstance(leaf, torch.device) and leaf.index is not None]
        return named[0] if named else torch.device(self._name, self._extension.current_device())

    def _stream(self, device: torch.device) -> tuple[int, int]:
        return device.index, self._extension.current_stream(device.index)

    def _wait(self, device: torch.device, why: str) -> None:
        self._simulator.synchronize(*self._stream(device), why)

    def _blocks(self, tensors: Iterable[Tensor]) -> set[int]:
        return {self._extension.address_of(tensor) for tensor in tensors if tensor.numel()}

    def _is_ours(self, leaf: object) -> bool:
        return isinstance(leaf, Tensor) and leaf.device.type == self._name

    def _on_host(self, leaf: Any, clone: bool = True) -> Any:
        """What the host computes with. `clone`: tensors of the host are copied, because they may change."""
        if isinstance(leaf, Tensor):
            if self._is_ours(leaf):
                return self._extension.host_view(leaf)
            return leaf.clone() if clone else leaf
        if isinstance(leaf, torch.device):
            return torch.device("cpu")
        return None if isinstance(leaf, torch.Generator) else leaf


def _as_meta(leaf: Any) -> Any:
    if isinstance(leaf, Tensor):
        if leaf.device.type == "cpu":  # numbers of the host may be combined with tensors of the device
            return leaf.clone()
        return torch.empty_strided(leaf.size(), leaf.stride(), dtype=leaf.dtype, device="meta")
    if isinstance(leaf, torch.device):
        return torch.device("meta")
    return None if isinstance(leaf, torch.Generator) else leaf


def _written(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The arguments that an operator writes."""
    found = []
    for n, argument in enumerate(operator._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[n] if n < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return found


def _product_by_rows(*args: Tensor, out: Tensor | None = None, beta: float = 1, alpha: float = 1) -> Tensor:
    """A matrix product whose sums are taken in an order that depends on the number of rows, as on GPUs."""
    *bias, left, right = args
    dtype, wide = left.dtype, torch.promote_types(left.dtype, torch.float32)
    inner, rows = left.shape[-1], left.shape[-2]
    cut = max(1, inner * (1 + rows % 3) // 4)
    product = sum(left[..., part].to(wide) @ right[..., part, :].to(wide) for part in (slice(0, cut), slice(cut, None)))
    assert isinstance(product, Tensor)
    if bias:
        product = beta * bias[0].to(wide) + alpha * product
    return product.to(dtype) if out is None else out.copy_(product.to(dtype))
