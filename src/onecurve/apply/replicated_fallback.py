"""Runs operations on full tensors that DTensor cannot run on sharded ones.

DTensor raises if it has no sharding strategy for an operation, or none that fits the placements. One such operation
would cost the whole model its tensor axis. Here the operation's arguments are all-gathered instead, and every rank
computes the full result. What this costs is seen by the search for layouts, which counts the collectives.
"""

import logging
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor._dispatch import OpDispatcher
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.distributed.tensor._op_schema import OpInfo, OpSchema, OutputSharding
from torch.utils import _pytree as pytree

_log = logging.getLogger(__name__)
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def register_replicated_fallback() -> None:
    """Give DTensor's dispatcher the fallback, where it asks Python how to shard an operation."""
    dispatcher = DTensor._op_dispatcher
    original = OpDispatcher._propagate_op_sharding_dispatch_slow_path

    def propagate(
        operation: OpOverload,
        arguments: tuple[Any, ...],
        kwargs: dict[str, Any],
        info: OpInfo,
        try_cache: bool,
    ) -> Any:
        try:
            sharding = original(dispatcher, operation, arguments, kwargs, info, try_cache)
            if not isinstance(sharding, OutputSharding) or not _needs_impossible_redistribution(info, sharding):
                return sharding
            reason = "it would need partial sums of a sharded tensor"
        except (NotImplementedError, RuntimeError) as error:
            if operation in _VIEWS:  # heads that cannot be divided limit the degree; gathering them would cost too much
                raise
            reason = str(error).partition("\n")[0]
        _log_once(str(operation), reason)
        # The dispatcher returns what is no OutputSharding as the operation's result.
        return run_replicated(operation, arguments, kwargs)

    dispatcher.__dict__["_propagate_op_sharding_dispatch_slow_path"] = propagate


@cache
def _log_once(operation: str, reason: str) -> None:
    _log.info("tensor: %s runs on full tensors: %s", operation, reason)


def run_replicated(operation: OpOverload, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """All-gather the arguments, compute on every rank, and return replicated tensors.

    A tensor that the operation changes in place keeps its placement: each rank takes its part of the new value.
    """
    leaves, structure = pytree.tree_flatten((arguments, kwargs))
    mesh = next(leaf.device_mesh for leaf in leaves if isinstance(leaf, DTensor))
    if mesh.ndim > 1:
        raise NotImplementedError(f"{operation} has no sharding strategy on a mesh of {mesh.ndim} dimensions")
    written = _written(operation, arguments, kwargs)
    full = [_full(leaf, copied=any(leaf is tensor for tensor in written)) for leaf in leaves]
    full_arguments, full_kwargs = pytree.tree_unflatten(full, structure)
    result = operation(*full_arguments, **full_kwargs)
    for tensor in written:
        changed = full[next(n for n, leaf in enumerate(leaves) if leaf is tensor)]
        _write_back(tensor, changed)
    if written and isinstance(result, Tensor):
        return written[0]
    return pytree.tree_map_only(Tensor, lambda tensor: _replicated(tensor, mesh), result)


def _write_back(tensor: Tensor, full: Tensor) -> None:
    """Store a full value in a tensor, which keeps its placement."""
    if not isinstance(tensor, DTensor):
        tensor.copy_(full)
    elif tensor.placements[0].is_partial("sum"):  # the sum over the ranks is the value
        tensor._local_tensor.copy_(full if tensor.device_mesh.get_local_rank() == 0 else torch.zeros_like(full))
    elif tensor.placements[0].is_partial("avg"):
        tensor._local_tensor.copy_(full)
    else:
        replicated = _replicated(full, tensor.device_mesh)
        tensor._local_tensor.copy_(replicated.redistribute(placements=tensor.placements)._local_tensor)


def _needs_impossible_redistribution(info: OpInfo, sharding: OutputSharding) -> bool:
    """True if a sharded argument would have to become a partial sum, which DTensor cannot do."""
    wanted = sharding.redistribute_schema
    if not sharding.needs_redistribute or not isinstance(wanted, OpSchema) or info.schema is None:
        return False
    return any(
        new.is_partial() and not old.is_partial() and not old.is_replicate()
        for before, after in zip(info.schema.args_spec, wanted.args_spec, strict=False)
        for old, new in zip(before.placements, after.placements, strict=True)
    )


def _written(operation: OpOverload, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """The tensors among the arguments that the operation changes in place."""
    written = []
    for number, argument in enumerate(operation._schema.arguments):
        value = arguments[number] if number < len(arguments) else kwargs.get(argument.name)
        if argument.alias_info is not None and argument.alias_info.is_write and isinstance(value, Tensor):
            written.append(value)
    return written


def _full(value: Any, copied: bool) -> Any:
    """The full local tensor of a DTensor; other values unchanged. `copied`: it will be changed in place."""
    if not isinstance(value, Tensor):
        return value
    if isinstance(value, DTensor):
        value = value.redistribute(placements=[Replicate()] * value.device_mesh.ndim)._local_tensor
    return value.clone() if copied else value


def _replicated(local: Tensor, mesh: Any) -> DTensor:
    meta = TensorMeta(local.shape, local.stride(), local.dtype)
    spec = DTensorSpec(mesh, (Replicate(),), tensor_meta=meta)
    return DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
