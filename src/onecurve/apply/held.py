"""What one rank holds of a model, whoever runs it: the module, its pieces, its batch norms' statistics."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule

from onecurve.apply import norm
from onecurve.apply.blueprint import Blueprint
from onecurve.apply.mesh import LiveMesh
from onecurve.apply.precision import kept_dtype
from onecurve.apply.recompute import recompute
from onecurve.apply.weights import Weights
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.exchange import Group
from onecurve.device.piece import Piece, piece_of
from onecurve.job.batch import Micro
from onecurve.job.job import BatchNorm


class Held:
    """Made in two acts: the module as it was drawn, and, once the engines have taken hold of it, its pieces."""

    parameters: list[Piece]
    """Ties once."""
    trained: list[Piece]

    def __init__(self, blueprint: Blueprint, plan: Plan, mesh: LiveMesh, device: Device, batch_norm: BatchNorm) -> None:
        self.device = device
        self.group = mesh.group
        self.module = blueprint.module
        self._plan = plan
        self._dtype = kept_dtype(plan.precision)
        self._layout = torch.channels_last if plan.channels_last else torch.preserve_format
        self._average_statistics = batch_norm == "local" and mesh.data_group is not None
        self._mesh = mesh
        self._kept = set(self.module.state_dict())
        if batch_norm == "sync":
            norm.synchronize(self.module, mesh.data_group, cut=mesh.tensor_mesh is not None)
        # fully_shard takes contiguous parameters only; images may be laid out otherwise all the same.
        layout = self._layout if mesh.shard_mesh is None else torch.contiguous_format
        self._weights = Weights(blueprint.tape, device.torch_device, self._dtype, layout)

    def _change_forward(self, blocks: Sequence[str]) -> None:
        """What the plan wants of each block's forward, before an engine hooks into it."""
        recompute(self.module, blocks, self._plan.recompute)
        if self._plan.compile:
            for block in map(self.module.get_submodule, blocks):
                block.compile()

    def _take_pieces(self) -> None:
        named = list(self.module.named_parameters())
        self.parameters = [self._piece(name, parameter) for name, parameter in named]
        self.trained = [piece for piece, (_, p) in zip(self.parameters, named, strict=True) if p.requires_grad]

    def _piece(self, name: str, tensor: Tensor) -> Piece:
        return piece_of(name, tensor, self._mesh.first(tensor), self.group, self._mesh.copy)

    @property
    def peers(self) -> Group:
        """The ranks that hold parts of the same parameters."""
        return self._mesh.peers

    @property
    def reports(self) -> bool:
        """Whether this rank speaks for its samples."""
        return self._mesh.reports

    @property
    def state(self) -> list[Piece]:
        """All parameters and buffers; buffers as they are registered now, since forward may put others in place."""
        return [*self.parameters, *(self._piece(name, buffer) for name, buffer in self.module.named_buffers())]

    @property
    def saved(self) -> list[Piece]:
        """What belongs to the model's state_dict."""
        return [piece for piece in self.state if piece.name in self._kept]

    def place(self, micro: Micro) -> Micro:
        return micro.to(self.device.torch_device, self._dtype, self._layout)

    def clear_gradients(self) -> None:
        # Not by way of the module: what it registers while its parameters are gathered is not what holds the sums.
        for piece in self.parameters:
            piece.whole.grad = piece.local.grad = None

    def refresh(self) -> None:
        """After values were put into the pieces: copies gathered before are stale."""
        for each in self.module.modules():
            if isinstance(each, FSDPModule):
                each.reshard()

    def settle(self) -> None:
        """Make buffers fit to be saved or used for evaluation: local batch norm's running statistics differ between
        ranks and are averaged. They are linear in the batches' own, so it does not matter how often."""
        if self._average_statistics:
            norm.average_statistics(self.module, self._mesh.data_group)
