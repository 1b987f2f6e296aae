"""Refuses what a forward does to parameters that the plan cannot carry, before the update that would be wrong.

The trace of the model shows most of it beforehand, but not what happens later in the training, or depends on values.
"""

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from onecurve.describe.changed_buffers import ChangedBuffers, parameters_text
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.bit_hash import bit_hash
from onecurve.device.collectives import Group


class ParameterWatch:
    """Compares a module's parameters before and after the forwards of a step."""

    def __init__(self, module: nn.Module, plan: Plan, changed: ChangedBuffers, group: Group) -> None:
        """`changed`: what the trace has shown. `group`: the data-parallel ranks, which hold the same parameters."""
        self._module, self._plan, self._changed, self._group = module, plan, changed, group
        self._modules = [*module.modules()]
        self._exchanges = plan.mesh.shard > 1
        """True if parameters are exchanged for gathered ones, which get new memory each time."""
        self._registered = self._registrations()
        self._flags: list[bool] = []
        self._versions: list[tuple[int, int]] = []
        self._named: list[tuple[str, Tensor]] = []

    def begin_step(self, named: Iterable[tuple[str, Tensor]]) -> None:
        """`named`: the parameters as forward sees them."""
        self._named = [*named]
        self._flags = [tensor.requires_grad for _, tensor in self._named]
        self._versions = [self._version(tensor) for _, tensor in self._named]

    def end_forward(self) -> None:
        """Raise OnecurveError if forward has changed what is trained; fully_shard undoes this before backward."""
        if self._exchanges:
            self._refuse_changed_flags()

    def end_step(self) -> None:
        """Raise OnecurveError if the step must not be applied. All ranks of the group call this."""
        self._refuse_new_parameters()
        self._refuse_changed_flags()
        now = [self._version(tensor) for _, tensor in self._named]
        written = [
            each for each, before, after in zip(self._named, self._versions, now, strict=True) if before != after
        ]
        self._refuse_untraced([name for name, _ in written])
        if self._group is not None and self._changed.parameters:
            self._refuse_differences([tensor for name, tensor in self._named if name in self._changed.parameters])

    def _version(self, tensor: Tensor) -> tuple[int, int]:
        """Changes when a tensor is written in place, or when it is given other memory through `.data`."""
        local = _local(tensor)
        return local._version, 0 if self._exchanges else local.data_ptr()

    def _registrations(self) -> list[int]:
        """Changes when a module or a parameter is added, removed, or replaced by another one."""
        if self._exchanges:
            return [len(module._parameters) + len(module._modules) for module in self._modules]
        children = [len(module._modules) for module in self._modules]
        return children + [id(each) for module in self._modules for each in module._parameters.values()]

    def _refuse_new_parameters(self) -> None:
        if self._registrations() != self._registered:
            known = {id(module) for module in self._modules}
            new = [name for name, module in self._module.named_modules() if id(module) not in known]
            what = f"made the module {new[0]!r}" if new else "made, replaced or removed a parameter or a module"
            raise OnecurveError(
                f"model: forward has {what}; make it in the constructor: what forward makes is neither trained nor "
                "saved"
            )

    def _refuse_changed_flags(self) -> None:
        for (name, tensor), before in zip(self._named, self._flags, strict=True):
            if tensor.requires_grad is not before:
                raise OnecurveError(
                    f"model: forward has set requires_grad of parameter {name!r} to {tensor.requires_grad}; which "
                    "parameters are trained is decided before the first step. Train in two runs, the second with "
                    "Job(weights=…) and another Job(freeze=…)"
                )

    def _refuse_untraced(self, written: Sequence[str]) -> None:
        """Refuse writes that the trace did not show: it has refused those that the plan cannot carry."""
        traced = {*self._changed.parameters, *self._changed.data_dependent_parameters}
        unknown = [name for name in written if name not in traced]
        mesh = self._plan.mesh
        if unknown and (mesh.data > 1 or mesh.pipeline > 1 or self._plan.rounds > 1):
            raise OnecurveError(
                f"plan {self._plan}: forward has written into {parameters_text(unknown)}, which the trace of the model "
                "did not show (--verbose logs why); ranks or rounds would write it each for itself. Write in every "
                "forward in training mode, or use a plan of one rank and one round"
            )

    @torch.no_grad()
    def _refuse_differences(self, tensors: Sequence[Tensor]) -> None:
        """Refuse what every rank has written for itself, if it is not the same."""
        hashes = torch.stack([bit_hash(_local(tensor)) for tensor in tensors])
        extremes = torch.cat([hashes, ~hashes])  # the complement turns a maximum into a minimum
        dist.all_reduce(extremes, dist.ReduceOp.MAX, group=self._group)
        if not torch.equal(extremes[: len(hashes)], ~extremes[len(hashes) :]):
            raise OnecurveError(
                f"plan {self._plan}: forward has written other values into "
                f"{parameters_text(self._changed.parameters)} on each data-parallel rank; use a plan with one "
                "data-parallel rank"
            )


def _local(tensor: Tensor) -> Tensor:
    return tensor._local_tensor if isinstance(tensor, DTensor) else tensor
