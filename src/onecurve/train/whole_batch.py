"""A step with a loss over the whole batch, in two passes.

The first pass runs without gradients, and the embeddings of all samples are put together on every rank. The loss and
its gradient with respect to the embeddings are computed there. The second pass repeats forward with the same
randomness, and backward starts from that gradient: the result is that of the whole batch on one device, and memory is
that of one micro-batch plus the embeddings.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.plan import Plan
from onecurve.device.precision import autocast
from onecurve.device.step_clock import step_clock
from onecurve.job.batch import MicroBatch
from onecurve.job.objective import weigh
from onecurve.job.weighted import Weighted
from onecurve.job.whole_batch import TWO_PASSES, WholeBatchLoss
from onecurve.train.gathered_batch import GatheredBatch, gather_batch
from onecurve.train.part import Part


class WholeBatch:
    """Computes steps and evaluations with such a loss."""

    def __init__(self, loss: WholeBatchLoss, part: Part, plan: Plan) -> None:
        if plan.mesh.pipeline > 1:
            raise OnecurveError(f"loss: {TWO_PASSES}; use another axis")
        if part.tables is not None:
            raise OnecurveError("loss.whole_batch: it is not possible with embedding tables")
        self._loss, self._part, self._plan = loss, part, plan
        self._pending: list[tuple[Any, int]] = []

    def with_gradients(self, rounds: Sequence[MicroBatch], seeds: Sequence[int]) -> list[MicroBatch]:
        """Run the first pass. The targets become what `objective` needs in the second one."""
        outputs = self._part.preview(rounds, seeds)
        with step_clock.measure("sync"):
            batch = self._gathered(
                [
                    ((self._loss.embeddings(output), self._target(micro)), micro.samples)
                    for output, micro in zip(outputs, rounds, strict=True)
                ]
            )
        with step_clock.measure("forward"):
            value, gradients = self._gradients(batch)
        return [
            replace(micro, target=(value, batch.samples, [_rows(gradient, *own) for gradient in gradients]))
            for micro, own in zip(rounds, batch.own, strict=True)
        ]

    def objective(self, output: Any, micro: MicroBatch) -> Weighted:
        """The loss of the whole batch times the samples of this micro-batch, with the gradient of its embeddings."""
        embeddings = pytree.tree_leaves(self._loss.embeddings(output))
        if not micro.samples:  # a filler: it has a graph and no gradient
            return Weighted(torch.stack([0 * each.sum() for each in embeddings]).sum(), 0)
        value, samples, gradients = micro.target
        terms = []
        for each, gradient in zip(embeddings, gradients, strict=True):
            part = micro.samples / samples if each.dim() == 0 else 1.0  # what has no samples counts once in all parts
            terms.append((each.to(gradient.dtype) * gradient).sum() * (samples * part))
        total = torch.stack(terms).sum()
        return Weighted(total + (value * micro.samples - total).detach(), micro.samples)

    def evaluate(self, output: Any, micro: MicroBatch) -> Tensor:
        """Add a batch of an evaluation. Returns [loss sum, count] once as many samples as a training batch has are
        together, otherwise zeros."""
        self._pending.append(((self._loss.embeddings(output), micro.target), micro.samples))
        return self.end_evaluation() if len(self._pending) == self._plan.rounds else self._nothing()

    def end_evaluation(self) -> Tensor:
        """[loss sum, count] of the samples that are left."""
        if not self._pending:
            return self._nothing()
        batch, self._pending = self._gathered(self._pending), []
        is_first = self._part.data_group is None or self._part.data_group.rank() == 0
        if not (is_first and self._part.reports_metrics):
            return self._nothing()
        with torch.no_grad():
            mean = self._value(batch.values, batch.samples)
        return torch.tensor([float(mean) * batch.samples, batch.samples], dtype=torch.float64).to(self._nothing())

    def _target(self, micro: MicroBatch) -> Any:
        return self._part.place(replace(micro, inputs=None)).target

    def _gathered(self, parts: Sequence[tuple[Any, int]]) -> GatheredBatch:
        return gather_batch(self._part.data_group, parts)

    def _gradients(self, batch: GatheredBatch) -> tuple[Tensor, list[Tensor]]:
        """The loss and its gradient with respect to all embeddings, which are at least of 32 bits."""
        embeddings, target = batch.values
        leaves, structure = pytree.tree_flatten(embeddings)
        with torch.enable_grad():
            wide = [leaf.to(torch.promote_types(leaf.dtype, torch.float32)).requires_grad_() for leaf in leaves]
            value = self._value((pytree.tree_unflatten(wide, structure), target), batch.samples)
        gradients = torch.autograd.grad(value, wide, allow_unused=True, materialize_grads=True)
        return value.detach(), [gradient.detach() for gradient in gradients]

    def _value(self, values: tuple[Any, Any], samples: int) -> Tensor:
        """The mean loss of a batch."""
        try:
            with autocast(self._plan.precision, self._part.device):
                weighted = weigh(self._loss.of_embeddings(*values), samples, "loss.whole_batch")
        except OnecurveError:
            raise
        except Exception as error:
            raise UserCodeError(f"loss.whole_batch: loss raised {type(error).__name__}: {error}") from error
        return weighted.sum / weighted.count

    def _nothing(self) -> Tensor:
        return torch.zeros(2, dtype=torch.float64, device=self._part.device.torch_device)


def _rows(gradient: Tensor, begin: int, end: int) -> Tensor:
    return gradient[begin:end] if gradient.dim() else gradient
