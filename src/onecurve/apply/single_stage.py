"""The part of a rank that runs the full forward, from input to loss: all axes except `pipeline`.

`replicate` alone uses DDP. `shard`, and `replicate` together with `shard` or `tensor`, use FSDP2's fully_shard.
DDP averages gradients over the ranks, so the loss is multiplied by their number before backward; fully_shard is set to
sum. Parameters are split along `tensor` before fully_shard shards them.
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
from onecurve.apply.part_squares import PartSquares
from onecurve.apply.process_mesh import ProcessMesh
from onecurve.apply.replicate import EveryParameter, UnusedParameterTest, replicate
from onecurve.apply.tensor import full_tensor
from onecurve.describe.resolved_plan import ResolvedPlan
from onecurve.device.device import Device
from onecurve.device.precision import autocast
from onecurve.device.prefetch import Prefetcher
from onecurve.device.step_clock import step_clock
from onecurve.job.batch import MicroBatch, Objective
from onecurve.job.job import BatchNorm
from onecurve.job.row_tables import RowTables
from onecurve.job.weighted import add_weighted
from onecurve.model.deferred import DeferredModel
from onecurve.model.fake_mode import refuse_fake_tensors


class SingleStagePart(AutoBackwardPart):
    """A part that uses any of `replicate`, `shard` and `tensor`, or a single rank."""

    def __init__(
        self,
        deferred: DeferredModel,
        resolved: ResolvedPlan,
        mesh: ProcessMesh,
        device: Device,
        batch_norm: BatchNorm,
        leaves_unused: UnusedParameterTest,
        tables: RowTables | None = None,
    ) -> None:
        self.tables = tables
        # The order matters: first what replaces a block's forward, then the engines that register hooks.
        super().__init__(deferred, resolved, mesh, device, batch_norm)
        self._transform_blocks(resolved.blocks or [""], self._changed_buffers)
        self._materialize_and_shard(self.module, resolved.blocks)
        self._ddp: DistributedDataParallel | None = None
        self._loss_multiplier = 1.0
        self._every_parameter: EveryParameter | None = None
        if self._tensor_axis is None and self._fsdp_root is None and self.group is not None:
            find_unused = leaves_unused(self.module, self._master_dtype, self.group)
            self._ddp = replicate(self.module, self.group, find_unused, compressed_dtype(resolved.plan))
            self._loss_multiplier = float(mesh.mesh.data)
            if not find_unused:
                self._every_parameter = EveryParameter(self.module.named_parameters(), resolved.plan.rounds > 1)
        self._finish_construction()
        self.part_squares = self._part_squares()
        self._prefetcher = Prefetcher(device)

    def _part_squares(self) -> PartSquares | None:
        plan = self._plan
        in_rounds = self._fsdp_root is None or plan.reduce == "round"
        parts = plan.mesh.data * (plan.rounds if in_rounds else 1)
        if parts == 1 or self._tensor_axis is not None or self.tables is not None or len(set(plan.shares)) > 1:
            return None
        return PartSquares(self.trainable, self._fsdp_root, parts, self._loss_multiplier)

    @refuse_fake_tensors()
    def run_rounds(
        self, rounds: Sequence[MicroBatch], objective: Objective, scale: float, seeds: Sequence[int]
    ) -> Tensor:
        self._begin_step()
        totals = torch.zeros(2, dtype=torch.float64, device=self.device.torch_device)
        placed = self._prefetcher.ahead(rounds, self.place, lambda micro: (micro.inputs, micro.target))
        for number, seed in enumerate(seeds):
            with step_clock.measure("copy"):
                micro = next(placed)
            self.device.seed(seed)
            with self._gradient_sync(last=number == len(rounds) - 1), self._tensor_parallel_context():
                with step_clock.measure("forward"), autocast(self._plan.precision, self.device):
                    weighted = objective(micro.forward(self._ddp or self.module), micro)
                    loss = full_tensor(weighted.sum)
                self._watch.end_forward()
                if self._every_parameter is not None:
                    self._every_parameter.begin_round()
                with step_clock.measure("backward"):
                    self._backward(loss * (scale * self._loss_multiplier))
            if self.tables is not None:
                with step_clock.measure("tables"):
                    self.tables.end_round(self._loss_multiplier)
            self._average_buffers()
            add_weighted(totals, loss, full_tensor(weighted.count))
        if self._every_parameter is not None:
            self._every_parameter.require()
        self._take_gradients()
        self._verify_buffers()
        return totals if self.reports_metrics else torch.zeros_like(totals)

    @refuse_fake_tensors()
    def preview(self, rounds: Sequence[MicroBatch], seeds: Sequence[int]) -> list[Any]:
        self._set_mode(training=True)
        self._running_buffers.save()
        outputs = []
        for micro, seed in zip(rounds, seeds, strict=True):
            with step_clock.measure("copy"):
                placed = self.place(micro)
            self.device.seed(seed)
            with step_clock.measure("forward"):
                outputs.append(self._forward_only(placed))
            self._average_buffers()  # the next round begins with them
        self._running_buffers.restore(True)
        return outputs

    @refuse_fake_tensors()
    def infer(self, micro: MicroBatch) -> Any:
        self._set_mode(training=False)
        return self._forward_only(micro)

    def _forward_only(self, micro: MicroBatch) -> Any:
        with torch.no_grad(), self._tensor_parallel_context(), autocast(self._plan.precision, self.device):
            return pytree.tree_map(full_tensor, micro.infer(self.module))

    def _backward(self, loss: Tensor) -> None:
        """Run backward. Once all gradients are computed, the rest of its time is spent waiting for their reduction."""
        if self.group is not None:
            # DDP and fully_shard wait in such a callback too. Theirs come later, because this one is the first.
            engine = torch.autograd.Variable._execution_engine
            loss.register_hook(  # type: ignore[no-untyped-call]
                lambda _: engine.queue_callback(lambda: step_clock.change(self._data_axis))
            )
        loss.backward()  # type: ignore[no-untyped-call]

    def _gradient_sync(self, last: bool) -> AbstractContextManager[None]:
        """Set up the gradient reduction of one round: in the last round of a step, or in each if the plan says so."""
        reduces = last or self._plan.reduce == "round"
        if self._fsdp_root is not None:
            self._fsdp_root.set_requires_gradient_sync(reduces)
            # The all-reduce over `replicate` is needed once per step, even if each round reduce-scatters over `shard`.
            self._fsdp_root.set_requires_all_reduce(last)
            self._fsdp_root.set_is_last_backward(last)
        elif self._ddp is not None and not reduces:
            return self._ddp.no_sync()
        return nullcontext()
