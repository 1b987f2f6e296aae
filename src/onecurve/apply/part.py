"""What one rank holds and runs where the samples are split: the axes `replicate` and `shard`.

`replicate` alone is DDP; with `shard` it is FSDP2's fully_shard, over (replicate, shard) where both are used. The
engines differ in how they reduce: DDP averages over the ranks, so its backward is scaled up by their number;
fully_shard is told to sum.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from onecurve.apply import norm
from onecurve.apply.blueprint import Blueprint
from onecurve.apply.mesh import LiveMesh
from onecurve.apply.shard import ScalarReduction, shard
from onecurve.apply.weights import Weights
from onecurve.describe.plan import Plan, Precision
from onecurve.device.device import Device
from onecurve.device.piece import Piece, piece_of
from onecurve.job.batch import Micro, Objective
from onecurve.job.job import BatchNorm

_DTYPES: dict[Precision, torch.dtype] = {"fp64": torch.float64, "fp32": torch.float32}

Trial = Callable[[nn.Module, torch.dtype], Tensor]
"""Runs the model on a few samples and returns a loss: shows which parameters it uses."""


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
        kept = set(self.module.state_dict())
        self._reduce_each_round = plan.reduce == "round"
        self._dtype = _DTYPES[plan.precision]
        weights = Weights(blueprint.tape, device.torch_device, self._dtype)
        self._reduce_scalars: Callable[[], None] | None = None
        self._gain = 1.0
        if mesh.shard_mesh is not None:
            self._sharded: FSDPModule | None = shard(self.module, blocks, mesh.shard_mesh, weights.realize)
            self._reduce_scalars = ScalarReduction(self.module, self.group)
        else:
            self._sharded = None
            weights.realize(self.module)
        if batch_norm == "sync":
            norm.synchronize(self.module, self.group)
        self._average_statistics = batch_norm == "local" and self.group is not None
        self._replicated: DistributedDataParallel | None = None
        if self._sharded is None and self.group is not None:
            self._gain = float(mesh.mesh.data)
            self._replicated = self._replicate(trial)
        first = mesh.data_rank == 0
        self.trained = [piece_of(n, p, first) for n, p in self.module.named_parameters() if p.requires_grad]
        held = {piece.name: piece for piece in self.trained}
        everything = [*self.module.named_parameters(), *self.module.named_buffers()]
        self.state: list[Piece] = [held.get(name) or piece_of(name, tensor, first) for name, tensor in everything]
        """All parameters and buffers, ties once."""
        self.saved = [piece for piece in self.state if piece.name in kept]
        """Those that belong to the model's state_dict."""
        self._training: bool | None = None

    def run_rounds(self, rounds: Sequence[Micro], objective: Objective, scale: float, seeds: Sequence[int]) -> Tensor:
        self._set_mode(training=True)
        totals = torch.zeros(2, dtype=torch.float64, device=self.device.torch_device)
        for number, (micro, seed) in enumerate(zip(rounds, seeds, strict=True)):
            self.device.seed(seed)
            micro = self.place(micro)
            with self._round(last=number == len(rounds) - 1):
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
        with torch.no_grad():
            return micro.forward(self.module)

    def place(self, micro: Micro) -> Micro:
        return micro.to(self.device.torch_device, self._dtype)

    def clear_gradients(self) -> None:
        self.module.zero_grad(set_to_none=True)

    def settle(self) -> None:
        """Make buffers fit to be saved or used for evaluation: local batch norm's running statistics differ between
        ranks and are averaged. They are linear in the batches' own, so it does not matter how often."""
        if self._average_statistics:
            norm.average_statistics(self.module, self.group)

    def _set_mode(self, training: bool) -> None:
        if self._training is not training:
            if not training:
                self.settle()
            self.module.train(training)
            self._training = training

    def _round(self, last: bool) -> AbstractContextManager[None]:
        """When gradients are reduced: with the last round, or with each."""
        if self._sharded is not None:
            self._sharded.set_requires_gradient_sync(last or self._reduce_each_round)
            # Over `replicate` the sharded sums need to be added once, whatever happens per round.
            self._sharded.set_requires_all_reduce(last)
            self._sharded.set_is_last_backward(last)
        elif self._replicated is not None and not (last or self._reduce_each_round):
            return self._replicated.no_sync()
        return nullcontext()

    def _replicate(self, trial: Trial) -> DistributedDataParallel:
        return DistributedDataParallel(
            self.module,
            process_group=self.group,
            forward_sync_buffers=False,  # synchronized batch norm leaves them equal, local is meant to differ
            init_sync=False,  # every rank has replayed the same weights
            gradient_as_bucket_view=True,
            find_unused_parameters=_leaves_parameters_unused(self.module, trial, self._dtype),
        )


def _leaves_parameters_unused(module: nn.Module, trial: Trial, dtype: torch.dtype) -> bool:
    """Whether a trial backward leaves a trained parameter without gradient. The module is left as it was found."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    trial(module, dtype).backward()  # type: ignore[no-untyped-call]
    unused = any(parameter.requires_grad and parameter.grad is None for parameter in module.parameters())
    module.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, before in buffers:
            buffer.copy_(before)
    return unused
