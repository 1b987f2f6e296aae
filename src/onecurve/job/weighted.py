"""A sum together with its count, so that the mean of a batch does not depend on how the batch is split."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Weighted:
    """A sum and the number of items in it: the value that a loss or metric returns for one batch.

    Sums and counts are added over all ranks and gradient-accumulation rounds; the mean is total sum / total count. Use
    it when the loss is not a mean over samples, for example a mean over the tokens that are not padding.

    Args:
        sum: The sum over the items of this batch, a scalar tensor. A loss needs it to be differentiable.
        count: The number of items, a number or a scalar tensor. It gets no gradient.

    Example::

        def loss(logits, target):
            total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="sum")
            return oc.Weighted(total, (target != -100).sum())
    """

    sum: Tensor
    count: Tensor | float


def add_weighted(totals: Tensor, total: Tensor, count: Tensor | float) -> None:
    """Add a sum and its count to the vector `totals`, [sum, count].

    The two are added one by one: a number, or a tensor of the host with one element, goes along with its operation. To
    make a vector on the device of them first would make the host wait for the device.
    """
    totals[0].add_(total.detach())
    totals[1].add_(count.detach() if isinstance(count, Tensor) else count)
