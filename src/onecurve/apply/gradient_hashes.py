"""Hashes of the gradients that this rank's samples contribute, seen before they are accumulated and reduced."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor

from onecurve.device.bit_hash import bit_hash
from onecurve.device.local_tensor import LocalTensor

_FACTOR = 0x2545F4914F6CDD1D  # odd: no bit of an earlier round's hash is lost


class GradientHashes:
    """Looks at gradients while a step is computed in `captured`."""

    def __init__(self, trainable: Sequence[LocalTensor], fsdp_root: FSDPModule | None) -> None:
        self._trainable = trainable
        self._sharded: dict[int, Any] = {}
        """fully_shard's parameters by the id of the tensor that the module registers outside of forward."""
        for module in fsdp_root.modules() if fsdp_root is not None else ():  # type: ignore[attr-defined]
            if isinstance(module, FSDPModule):
                for group in fully_shard.state(module)._fsdp_param_groups:  # type: ignore[attr-defined]
                    self._sharded |= {id(parameter.sharded_param): parameter for parameter in group.fsdp_params}
        self._hashes: dict[int, Tensor] = {}
        self._norms: dict[int, Tensor] | None = None

    @contextmanager
    def captured(self, norms: bool = False) -> Iterator[None]:
        """Look at the gradients of backward. `norms`: also at their L2 norms."""
        self._hashes, self._norms = {}, {} if norms else None
        with ExitStack() as stack:
            for index, tensor in enumerate(self._trainable):
                self._watch(index, tensor.registered, stack)
            yield

    def take(self) -> tuple[Tensor, Tensor, list[int]]:
        """The hash of each parameter of `trainable` since `captured` (0 if it had no gradient), the norms if they were
        wanted, and the parameters' indices in the order in which backward came to them."""
        hashes, norms = self._hashes, self._norms or {}
        self._hashes, self._norms = {}, None
        device = self._trainable[0].local.device
        nothing = torch.zeros((), dtype=torch.int64, device=device)
        numbers = range(len(self._trainable))
        return (
            torch.stack([hashes.get(index, nothing) for index in numbers]),
            torch.stack([norms.get(index, nothing.double()) for index in numbers]),
            list(hashes),
        )

    def _watch(self, index: int, registered: Tensor, stack: ExitStack) -> None:
        """Look at the gradients of a parameter until the stack is closed."""

        def look(gradient: Tensor) -> None:
            self._add(index, gradient)

        def register(parameter: Tensor) -> None:
            stack.callback(parameter.register_hook(look).remove)  # type: ignore[no-untyped-call]

        sharded = self._sharded.get(id(registered))
        if sharded is None:
            register(registered)
        elif hasattr(sharded, "_unsharded_param"):
            register(sharded._unsharded_param)
        else:  # the first all-gather makes the tensor that gets the gradient
            sharded.init_unsharded_param = _followed(sharded.init_unsharded_param, sharded, register)
            stack.callback(sharded.__dict__.pop, "init_unsharded_param")

    @torch.no_grad()
    def _add(self, index: int, gradient: Tensor) -> None:
        before = self._hashes.get(index)
        own = bit_hash(gradient)
        self._hashes[index] = own if before is None else before * _FACTOR + own
        if self._norms is not None:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            norm = torch.linalg.vector_norm(local.detach(), dtype=torch.promote_types(local.dtype, torch.float32))
            self._norms[index] = self._norms.get(index, 0.0) + norm.abs().double()


def _followed(make: Callable[[], None], sharded: Any, register: Callable[[Tensor], None]) -> Callable[[], None]:
    @wraps(make)
    def made() -> None:
        is_new = not hasattr(sharded, "_unsharded_param")
        make()
        if is_new:
            register(sharded._unsharded_param)

    return made
