"""Parameters under fully_shard that get a gradient on some ranks and none on others, or none on any.

fully_shard reduces the gradients of a block in one message. If the ranks disagree on which parameters have one, the
message mixes up parameters. So a parameter without a gradient takes part with zeros, and afterwards one that no rank
used loses its gradient again, because optimizers skip parameters without one.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from onecurve.apply.gradient_reducer import refuse_sparse_gradient
from onecurve.apply.shard import parameter_groups
from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import Group, all_reduce_sum
from onecurve.device.local_tensor import LocalTensor


class UnusedParameters:
    """Makes the ranks agree on which parameters a step used."""

    def __init__(self, root: FSDPModule, local_tensors: Sequence[LocalTensor], group: Group) -> None:
        """`group`: the data-parallel ranks, which hold the same parameters and train on different samples."""
        self._group = group
        self._used: set[int] = set()
        self._reduced: set[int] = set()
        self._all_used: bool | None = None
        """True if the first step used every parameter on every rank; None before it."""
        managed = {id(p.sharded_param) for group in parameter_groups(root) for p in group.fsdp_params}
        self._local_tensors = [local_tensor for local_tensor in local_tensors if id(local_tensor.registered) in managed]
        self._names = {id(local_tensor.registered): local_tensor.name for local_tensor in self._local_tensors}
        for parameter_group in parameter_groups(root):
            self._observe(parameter_group)

    def begin_step(self) -> None:
        self._used.clear()
        self._reduced.clear()

    @torch.no_grad()
    def remove_gradients(self) -> None:
        """Set the gradient of each parameter that no rank used to None. Call this after the last backward of a step."""
        used_here = [id(local_tensor.registered) in self._used for local_tensor in self._local_tensors]
        if self._all_used:
            self._refuse_newly_unused(used_here)
            return
        if not self._local_tensors:
            return
        flags = torch.tensor(used_here, dtype=torch.float32, device=self._local_tensors[0].local.device)
        ranks = 1 if self._group is None else self._group.size()
        use_counts = all_reduce_sum(self._group, flags).tolist()
        for local_tensor, use_count in zip(self._local_tensors, use_counts, strict=True):
            if not use_count:
                local_tensor.registered.grad = local_tensor.local.grad = None
        if self._all_used is None:
            self._all_used = all(use_count == ranks for use_count in use_counts)

    def _refuse_newly_unused(self, used_here: Sequence[bool]) -> None:
        """The ranks no longer exchange flags, so what another rank did is not known."""
        for local_tensor, used in zip(self._local_tensors, used_here, strict=True):
            if not used:
                raise OnecurveError(
                    f"Parameter {local_tensor.name} got no gradient in this step, though every parameter got one in "
                    "the first step. Under `shard`, forward must use the same parameters in every step, or leave some "
                    "unused from the first step on. Use the parameter in every forward (adding 0 times its sum is "
                    "enough), or choose a plan without `shard`."
                )

    def _observe(self, parameter_group: Any) -> None:
        """Note the used parameters before each reduction, and let the unused ones take part in a step's first one."""
        reduce = parameter_group.post_backward

        def post_backward(*arguments: Any) -> None:
            for each in parameter_group.fsdp_params:
                refuse_sparse_gradient(self._names.get(id(each.sharded_param), ""), _gradient(each))
            self._used |= {id(p.sharded_param) for p in parameter_group.fsdp_params if _gradient(p) is not None}
            is_first = parameter_group.reduce_grads and id(parameter_group) not in self._reduced
            if is_first:
                self._reduced.add(id(parameter_group))
            parameter_group.reduce_scatter_unused_params = is_first
            reduce(*arguments)

        parameter_group.post_backward = post_backward


def _gradient(fsdp_parameter: Any) -> Tensor | None:
    if not hasattr(fsdp_parameter, "_unsharded_param"):
        return None
    accumulated: Tensor | None = fsdp_parameter.unsharded_accumulated_grad
    return accumulated if accumulated is not None else fsdp_parameter.unsharded_param.grad
