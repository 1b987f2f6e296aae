"""The common base of all parts: the module on this rank, its local tensors and its batch norm statistics."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.utils import _pytree as pytree

from onecurve.apply import sync_batch_norm
from onecurve.apply.activation_checkpointing import checkpoint_blocks
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.describe.errors import OnecurveError
from onecurve.describe.plan import Plan
from onecurve.device.collectives import Group
from onecurve.device.compilation import compile_blocks
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, local_tensor_of
from onecurve.device.precision import master_dtype
from onecurve.job.batch import MicroBatch
from onecurve.job.job import BatchNorm
from onecurve.model.adapters import frozen_base
from onecurve.model.deferred import DeferredModel
from onecurve.model.fake_mode import user_attributes_of
from onecurve.model.materialize import Materializer


class BasePart:
    """The model, or the fraction of it, that one rank holds.

    The constructor takes over the module while its tensors are still fake. Subclasses materialize and wrap it, and then
    call `_collect_local_tensors`.
    """

    parameters: list[LocalTensor]
    """This rank's parameters. A tied parameter is listed once."""
    trainable: list[LocalTensor]
    """The parameters with requires_grad=True, in the same order."""

    def __init__(
        self, deferred: DeferredModel, plan: Plan, mesh: ProcessMesh, device: Device, batch_norm: BatchNorm
    ) -> None:
        self.device = device
        self.group = mesh.group
        self.module = deferred.module
        self._plan = plan
        self._master_dtype = master_dtype(plan.precision)
        self._memory_format = torch.channels_last if plan.channels_last else torch.preserve_format
        self._averages_statistics = batch_norm == "local" and mesh.data_group is not None
        self._mesh = mesh
        self._attributes = user_attributes_of(self.module)
        self._state_dict_names = set(self.module.state_dict())
        self.unsaved = frozen_base(self.module)
        """Names of parameters that are not saved: the frozen base of a model with adapters."""
        if batch_norm == "sync":
            tensor_parallel = mesh.tensor_mesh is not None
            sync_batch_norm.synchronize(self.module, mesh.data_group, tensor_parallel=tensor_parallel)
        # fully_shard accepts only contiguous parameters; the inputs may still be channels_last.
        memory_format = self._memory_format if mesh.shard_mesh is None else torch.contiguous_format
        self._materializer = Materializer(
            deferred.recorder,
            device.torch_device,
            self._master_dtype,
            memory_format,
            is_filled_later=deferred.is_filled_later,
        )

    def _transform_blocks(self, blocks: Sequence[str], changed_buffers: Sequence[str] = ()) -> None:
        """Apply activation checkpointing and torch.compile to the blocks. Call this before DDP or fully_shard.

        `changed_buffers`: buffers that forward changes, besides batch norm's.
        """
        if self._plan.compile and self._plan.recompute != "none":
            self._refuse_buffers_in(blocks)
        plan = self._plan
        checkpoint_blocks(self.module, blocks, plan.recompute, changed_buffers, compiled=plan.compile)
        if self._plan.compile:
            compile_blocks(map(self.module.get_submodule, blocks))

    def _refuse_buffers_in(self, blocks: Sequence[str]) -> None:
        """torch.compile cannot trace what keeps a recomputation from changing buffers."""
        for name in blocks:
            if buffer := next((buffer for buffer, _ in self.module.get_submodule(name).named_buffers()), ""):
                raise OnecurveError(
                    f"plan {self._plan}: compile and recompute together need blocks without buffers, and "
                    f"{name or 'the model'} has {buffer!r}; leave out one of the two"
                )

    def _collect_local_tensors(self) -> None:
        named_parameters = list(self.module.named_parameters())
        self.parameters = [self._local_tensor(name, parameter) for name, parameter in named_parameters]
        self.trainable = [
            local_tensor
            for local_tensor, (_, parameter) in zip(self.parameters, named_parameters, strict=True)
            if parameter.requires_grad
        ]
        for local_tensor in self.parameters:
            if isinstance(local_tensor.registered, DTensor):  # made anew; others have their attributes still
                attributes = self._attributes.get(local_tensor.name, {})
                _refuse_tensors(local_tensor.name, attributes, self._plan)
                local_tensor.registered.__dict__.update(attributes)
                local_tensor.local.__dict__.update(attributes)

    def _local_tensor(self, name: str, tensor: Tensor) -> LocalTensor:
        return local_tensor_of(name, tensor, self._mesh.is_first_holder(tensor), self.group, self._mesh.replica)

    @property
    def peers(self) -> Group:
        """The ranks that hold parts of the same parameters."""
        return self._mesh.peers

    @property
    def data_group(self) -> Group:
        """The ranks that hold the same part of the model and process different samples, in the order of these."""
        return self._mesh.data_group

    @property
    def reports_metrics(self) -> bool:
        """True if this rank reports loss and metrics for its samples."""
        return self._mesh.reports_metrics

    @property
    def state(self) -> list[LocalTensor]:
        """All parameters and buffers. Buffers are looked up at every call, because forward may replace them."""
        return [*self.parameters, *(self._local_tensor(name, buffer) for name, buffer in self.module.named_buffers())]

    @property
    def state_dict_tensors(self) -> list[LocalTensor]:
        """The parameters and buffers that belong to the model's state_dict."""
        return [local_tensor for local_tensor in self.state if local_tensor.name in self._state_dict_names]

    def place(self, micro: MicroBatch) -> MicroBatch:
        """Return the micro-batch on this rank's device, in the dtype and memory format that the model takes."""
        return micro.to(self.device.torch_device, self._master_dtype, self._memory_format)

    def clear_gradients(self) -> None:
        # Not module.zero_grad(): while parameters are gathered, the module registers other tensors than the sharded
        # ones that hold the gradients.
        for local_tensor in self.parameters:
            local_tensor.registered.grad = local_tensor.local.grad = None

    def drop_gathered(self) -> None:
        """Free all-gathered parameters. Call this after writing into local tensors, which makes the copies stale."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def sync_buffers(self) -> None:
        """Make buffers equal on all ranks, for saving and evaluation.

        Only the running statistics of local batch norm differ between ranks; they are averaged. They are linear in the
        statistics of the batches, so the result does not depend on how often this is called.
        """
        if self._averages_statistics:
            sync_batch_norm.average_statistics(self.module, self._mesh.data_group)


def _refuse_tensors(name: str, attributes: Mapping[str, Any], plan: Plan) -> None:
    for attribute, value in attributes.items():
        if any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(value)):
            raise OnecurveError(
                f"plan {plan}: attribute {attribute!r} of parameter {name!r} is a tensor, which cannot be split along "
                "with the parameter; make it a buffer of the module, or use a plan without 'shard' and 'tensor'"
            )
