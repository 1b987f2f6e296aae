"""What one rank holds of a model, whoever runs it: the module, its pieces, its batch norms' statistics."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from onecurve.apply import sync_batch_norm
from onecurve.apply.activation_checkpointing import recompute
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.describe.plan import Plan
from onecurve.device.collectives import Group
from onecurve.device.device import Device
from onecurve.device.local_tensor import LocalTensor, local_tensor_of
from onecurve.device.precision import master_dtype
from onecurve.job.batch import MicroBatch
from onecurve.job.job import BatchNorm
from onecurve.model.deferred import DeferredModel
from onecurve.model.materialize import Materializer


class BasePart:
    """Made in two acts: the module as it was drawn, and, once the engines have taken hold of it, its pieces."""

    parameters: list[LocalTensor]
    """Ties once."""
    trained: list[LocalTensor]

    def __init__(
        self, deferred: DeferredModel, plan: Plan, mesh: ProcessMesh, device: Device, batch_norm: BatchNorm
    ) -> None:
        self.device = device
        self.group = mesh.group
        self.module = deferred.module
        self._plan = plan
        self._dtype = master_dtype(plan.precision)
        self._layout = torch.channels_last if plan.channels_last else torch.preserve_format
        self._average_statistics = batch_norm == "local" and mesh.data_group is not None
        self._mesh = mesh
        self._state_dict_names = set(self.module.state_dict())
        if batch_norm == "sync":
            sync_batch_norm.synchronize(self.module, mesh.data_group, cut=mesh.tensor_mesh is not None)
        # fully_shard takes contiguous parameters only; images may be laid out otherwise all the same.
        layout = self._layout if mesh.shard_mesh is None else torch.contiguous_format
        self._weights = Materializer(deferred.recorder, device.torch_device, self._dtype, layout)

    def _change_forward(self, blocks: Sequence[str]) -> None:
        """What the plan wants of each block's forward, before an engine hooks into it."""
        recompute(self.module, blocks, self._plan.recompute)
        if self._plan.compile:
            for block in map(self.module.get_submodule, blocks):
                block.compile()

    def _collect_local_tensors(self) -> None:
        kwargs = list(self.module.named_parameters())
        self.parameters = [self._local_tensor(name, parameter) for name, parameter in kwargs]
        self.trained = [
            local_tensor for local_tensor, (_, p) in zip(self.parameters, kwargs, strict=True) if p.requires_grad
        ]

    def _local_tensor(self, name: str, tensor: Tensor) -> LocalTensor:
        return local_tensor_of(name, tensor, self._mesh.first(tensor), self.group, self._mesh.copy)

    @property
    def peers(self) -> Group:
        """The ranks that hold parts of the same parameters."""
        return self._mesh.peers

    @property
    def reports(self) -> bool:
        """Whether this rank speaks for its samples."""
        return self._mesh.reports

    @property
    def state(self) -> list[LocalTensor]:
        """All parameters and buffers; buffers as they are registered now, since forward may put others in place."""
        return [*self.parameters, *(self._local_tensor(name, buffer) for name, buffer in self.module.named_buffers())]

    @property
    def saved(self) -> list[LocalTensor]:
        """What belongs to the model's state_dict."""
        return [local_tensor for local_tensor in self.state if local_tensor.name in self._state_dict_names]

    def place(self, micro: MicroBatch) -> MicroBatch:
        return micro.to(self.device.torch_device, self._dtype, self._layout)

    def clear_gradients(self) -> None:
        # Not by way of the module: what it registers while its parameters are gathered is not what holds the sums.
        for local_tensor in self.parameters:
            local_tensor.whole.grad = local_tensor.local.grad = None

    def drop_gathered(self) -> None:
        """After values were put into the pieces: copies gathered before are stale."""
        for each in self.module.modules():
            if isinstance(each, FSDPModule):
                each.reshard()

    def sync_buffers(self) -> None:
        """Make buffers fit to be saved or used for evaluation: local batch norm's running statistics differ between
        ranks and are averaged. They are linear in the batches' own, so it does not matter how often."""
        if self._average_statistics:
            sync_batch_norm.average_statistics(self.module, self._mesh.data_group)
