"""Optimizers of embedding rows. Each updates only the rows that a step has used."""

import math
from dataclasses import dataclass
from typing import Protocol

from onecurve.describe.errors import OnecurveError


class RowOptimizer(Protocol):
    """Settings of an optimizer. What it computes is in `onecurve.params.row_kernels`."""

    @property
    def lr(self) -> float:
        """Learning rate, before the schedule."""

    def state_width(self, width: int) -> int:
        """Return how many numbers of state a row of this width has. They are 0 at first."""


@dataclass(frozen=True)
class SGD:
    """Stochastic gradient descent on embedding rows.

    Args:
        lr: Learning rate, before the schedule. Default: 1e-2.

    Example::

        oc.params.Embedding("item", 32, optimizer=oc.params.SGD(lr=0.1))
    """

    lr: float = 1e-2

    def __post_init__(self) -> None:
        _check_lr("SGD", self.lr)

    def state_width(self, width: int) -> int:  # noqa: ARG002
        return 0


@dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one accumulator per row, the mean of its squared gradients, summed over the steps that used it.

    Args:
        lr: Learning rate, before the schedule. Default: 1e-2.
        eps: Number added to the denominator for numerical stability. Default: 1e-8.

    Example::

        oc.params.EmbeddingBag("user", 64, mode="mean", optimizer=oc.params.RowwiseAdagrad(lr=0.05))
    """

    lr: float = 1e-2
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_lr("RowwiseAdagrad", self.lr)

    def state_width(self, width: int) -> int:  # noqa: ARG002
        return 1


@dataclass(frozen=True)
class Adam:
    """Adam on the rows that a step has used, as `torch.optim.SparseAdam`: the moments of other rows stay as they are.

    Args:
        lr: Learning rate, before the schedule. Default: 1e-3.
        betas: Decay rates of the running averages of the gradient and of its square. Default: (0.9, 0.999).
        eps: Number added to the denominator for numerical stability. Default: 1e-8.

    Example::

        oc.params.Embedding("item", 32, optimizer=oc.params.Adam(lr=1e-3))
    """

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8

    def __post_init__(self) -> None:
        _check_lr("Adam", self.lr)

    def state_width(self, width: int) -> int:
        return 2 * width


def _check_lr(owner: str, lr: float) -> None:
    if not (isinstance(lr, int | float) and 0 <= lr < math.inf):
        raise OnecurveError(f"{owner}: lr must be a number of at least 0, got {lr!r}")
