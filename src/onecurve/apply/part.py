"""What one rank holds and runs where the samples are split: the axes `replicate` and `shard`.

`replicate` alone is DDP; with `shard` it is FSDP2's fully_shard, over (replicate, shard) where both are used. The
engines differ in how they reduce: DDP averages over the ranks, so its backward is scaled up by their number;
fully_shard is told to sum.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from onecurve.apply import norm
from onecurve.apply.blueprint import Blueprint
from onecurve.apply.mesh import LiveMesh
from onecurve.apply.precision import compressed_dtype, computing, kept_dtype, shard_policy
from onecurve.apply.recompute import recompute
from onecurve.apply.replicate import Trial, leaves_parameters_unused, replicate
from onecurve.apply.shard import ScalarReduction, shard
from onecurve.apply.weights import Weights
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.piece import Piece, piece_of
from onecurve.device.transfer import Transfer
from onecurve.job.batch import Micro, Objective
from onecurve.job.job import BatchNorm


class DataPart:
    """A rank of `replicate` and `shard`, or a rank alone."""

    def __init__(
        self,
        blueprint: Blueprint,
        plan: Plan,
        mesh: LiveMesh,
        device: Device,
        blocks: Sequence[str],
        batch_norm: BatchNorm,
        trial: Trial,
    ) -> None:
        self.device = device
        self.group = mesh.group
        self.module = blueprint.module
        self._plan = plan
        self._dtype = kept_dtype(plan.precision)
        self._layout = torch.channels_last if plan.channels_last else torch.preserve_format
        self._average_statistics = batch_norm == "local" and self.group is not None
        kept = set(self.module.state_dict())

        # The order matters: what changes forward comes first, the engines that hook into it last.
        if batch_norm == "sync":
            norm.synchronize(self.module, self.group)
        recompute(self.module, blocks, plan.recompute)
        if plan.compile:
            for block in map(self.module.get_submodule, blocks or [""]):
                block.compile()
        # fully_shard takes contiguous parameters only; images may be laid out otherwise all the same.
        layout = self._layout if mesh.shard_mesh is None else torch.contiguous_format
        weights = Weights(blueprint.tape, device.torch_device, self._dtype, layout)
        self._sharded: FSDPModule | None = None
        self._replicated: DistributedDataParallel | None = None
        self._gain = 1.0
        if mesh.shard_mesh is not None:
            policy = shard_policy(plan)
            self._sharded = shard(self.module, blocks, mesh.shard_mesh, weights.realize, plan.sharding, policy)
        else:
            weights.realize(self.module)
        if self._sharded is None and self.group is not None:
            unused = leaves_parameters_unused(self.module, trial, self._dtype, self.group)
            self._replicated = replicate(self.module, self.group, unused, compressed_dtype(plan))
            self._gain = float(mesh.mesh.data)
        self._reduce_scalars: Callable[[], None] | None = None
        if self._sharded is not None:
            self._reduce_scalars = ScalarReduction(self.module, self.group)

        self._first = mesh.data_rank == 0
        self._kept = kept
        named = list(self.module.named_parameters())
        self.parameters: list[Piece] = [piece_of(name, parameter, self._first) for name, parameter in named]
        """Ties once."""
        self.trained = [piece for piece, (_, p) in zip(self.parameters, named, strict=True) if p.requires_grad]
        self._statistics = norm.Statistics(self.module)
        self._transfer = Transfer(device)

    @property
    def state(self) -> list[Piece]:
        """All parameters and buffers; buffers as they are registered now, since forward may put others in place."""
        return [*self.parameters, *(piece_of(n, buffer, self._first) for n, buffer in self.module.named_buffers())]

    @property
    def saved(self) -> list[Piece]:
        """What belongs to the model's state_dict."""
        return [piece for piece in self.state if piece.name in self._kept]

    def run_rounds(self, rounds: Sequence[Micro], objective: Objective, scale: float, seeds: Sequence[int]) -> Tensor:
        self._set_mode(training=True)
        self._statistics.keep()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device.torch_device)
        placed = self._transfer.ahead(rounds, self.place, lambda micro: (micro.inputs, micro.target))
        for number, (micro, seed) in enumerate(zip(placed, seeds, strict=True)):
            self.device.seed(seed)
            with self._round(last=number == len(rounds) - 1):
                with computing(self._plan.precision, self.device):
                    weighted = objective(micro.forward(self._replicated or self.module), micro)
                (weighted.sum * (scale * self._gain)).backward()  # type: ignore[no-untyped-call]
            totals += torch.stack([weighted.sum.detach().double(), torch.as_tensor(weighted.count).to(totals)])
        if self._reduce_scalars is not None:
            self._reduce_scalars()
        for piece in self.trained:
            piece.take_gradient()
        return totals

    def infer(self, micro: Micro) -> Any:
        self._set_mode(training=False)
        with torch.no_grad(), computing(self._plan.precision, self.device):
            return micro.forward(self.module)

    def place(self, micro: Micro) -> Micro:
        return micro.to(self.device.torch_device, self._dtype, self._layout)

    def clear_gradients(self) -> None:
        self.module.zero_grad(set_to_none=True)

    def undo_statistics(self, where: Tensor | bool) -> None:
        self._statistics.undo(where)

    def settle(self) -> None:
        """Make buffers fit to be saved or used for evaluation: local batch norm's running statistics differ between
        ranks and are averaged. They are linear in the batches' own, so it does not matter how often."""
        if self._average_statistics:
            norm.average_statistics(self.module, self.group)

    def _set_mode(self, training: bool) -> None:
        if self.module.training is not training:
            if not training:
                self.settle()
            self.module.train(training)

    def _round(self, last: bool) -> AbstractContextManager[None]:
        """When gradients are reduced: with the last round, or with each."""
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last or self._plan.reduce == "round")
            # Over `replicate` the sharded sums need to be added once, whatever happens per round.
            self._sharded.set_requires_all_reduce(last)
            self._sharded.set_is_last_backward(last)
        elif self._replicated is not None and not (last or self._plan.reduce == "round"):
            return self._replicated.no_sync()
        return nullcontext()
