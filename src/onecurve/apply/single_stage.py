"""What one rank holds and runs of a model that is in one piece from input to loss: all axes but `pipeline`.

`replicate` alone is DDP; with `shard` it is FSDP2's fully_shard, over (replicate, shard) where both are used. The
engines differ in how they reduce: DDP averages over the ranks, so its backward is scaled up by their number;
fully_shard is told to sum. What is cut along `tensor` is so before fully_shard sees it.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree as pytree

from onecurve.apply.auto_backward import AutoBackwardPart
from onecurve.apply.mixed_precision import compressed_dtype
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.replicate import UnusedParameterTrial, leaves_parameters_unused, replicate
from onecurve.apply.tensor import full_tensor
from onecurve.describe.plan import Plan
from onecurve.device.device import Device
from onecurve.device.precision import autocast
from onecurve.device.prefetch import Prefetcher
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import BatchNorm
from onecurve.model.deferred import DeferredModel


class SingleStagePart(AutoBackwardPart):
    """A rank of `replicate`, `shard` and `tensor`, or a rank alone."""

    def __init__(
        self,
        deferred: DeferredModel,
        plan: Plan,
        mesh: ProcessMesh,
        device: Device,
        blocks: Sequence[str],
        batch_norm: BatchNorm,
        trial: UnusedParameterTrial,
    ) -> None:
        # The order matters: what changes forward comes first, the engines that hook into it last.
        super().__init__(deferred, plan, mesh, device, batch_norm)
        self._change_forward(blocks or [""])
        self._split(self.module, blocks)
        self._replicated: DistributedDataParallel | None = None
        self._gain = 1.0
        if self._tensor is None and self._sharded is None and self.group is not None:
            unused = leaves_parameters_unused(self.module, trial, self._dtype, self.group)
            self._replicated = replicate(self.module, self.group, unused, compressed_dtype(plan))
            self._gain = float(mesh.mesh.data)
        self._finish_construction()
        self._prefetcher = Prefetcher(device)

    def run_rounds(
        self, rounds: Sequence[MicroBatch], objective: Objective, scale: float, seeds: Sequence[int]
    ) -> Tensor:
        self._set_mode(training=True)
        self._statistics.keep()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device.torch_device)
        placed = self._prefetcher.ahead(rounds, self.place, lambda micro: (micro.inputs, micro.target))
        for number, (micro, seed) in enumerate(zip(placed, seeds, strict=True)):
            self.device.seed(seed)
            with self._round(last=number == len(rounds) - 1), self._running():
                with autocast(self._plan.precision, self.device):
                    weighted = objective(micro.forward(self._replicated or self.module), micro)
                loss, count = full_tensor(weighted.sum), full_tensor(torch.as_tensor(weighted.count))
                (loss * (scale * self._gain)).backward()
            totals += torch.stack([loss.detach().double(), count.to(totals)])
        self._take_gradients()
        return totals if self.reports else torch.zeros_like(totals)

    def infer(self, micro: MicroBatch) -> Any:
        self._set_mode(training=False)
        with torch.no_grad(), self._running(), autocast(self._plan.precision, self.device):
            return pytree.tree_map(full_tensor, micro.forward(self.module))

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
