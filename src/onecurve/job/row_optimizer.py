"""Optimizers of embedding rows. Each updates only the rows that a step has used."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

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


_STATE_NAMES = {"SGD": (), "Adam": ("exp_avg", "exp_avg_sq"), "AdamW": ("exp_avg", "exp_avg_sq")}
_PLAIN_SETTINGS = {"dampening": 0, "amsgrad": False, "maximize": False}
"""Settings of those classes that must have these values."""
_OTHER_KEYS = ("params", "param_names", "lr", "foreach", "fused", "capturable", "differentiable")
"""Entries of a parameter group that do not change what is computed."""


@dataclass(frozen=True)
class TorchOptimizer:
    """An optimizer of `torch.optim`, for parameters of a model that are stored as rows."""

    kind: str
    """Name of the class: SGD, Adam or AdamW."""
    lr: float
    settings: Mapping[str, Any] = field(default_factory=dict)

    @staticmethod
    def of(optimizer: torch.optim.Optimizer, group: Mapping[str, Any]) -> "TorchOptimizer":
        """Take over the settings of a parameter group."""
        kind = type(optimizer).__name__
        settings = {name: value for name, value in group.items() if name not in _OTHER_KEYS}
        wrong = [name for name, value in _PLAIN_SETTINGS.items() if settings.pop(name, value) != value]
        if not type(optimizer).__module__.startswith("torch.optim") or kind not in _STATE_NAMES or wrong:
            what = f"{kind} with {', '.join(wrong)}" if wrong else kind
            raise OnecurveError(
                f"mode='async': {what} cannot update parameters on servers; use torch.optim's "
                f"{', '.join(_STATE_NAMES)}, without {', '.join(_PLAIN_SETTINGS)}"
            )
        if settings.pop("decoupled_weight_decay", False):
            kind = "AdamW"
        return TorchOptimizer(kind, float(group["lr"]), settings)

    @property
    def state_names(self) -> tuple[str, ...]:
        """What torch calls the tensors of its state, each as large as the parameter."""
        if self.kind == "SGD" and self.settings.get("momentum"):
            return ("momentum_buffer",)
        return _STATE_NAMES[self.kind]

    @property
    def counts_updates(self) -> bool:
        """True if the state has, at its end, how many updates a row has had: they correct the moments of Adam."""
        return self.kind != "SGD"

    def state_width(self, width: int) -> int:
        return len(self.state_names) * width + self.counts_updates


def _check_lr(owner: str, lr: float) -> None:
    if not (isinstance(lr, int | float) and 0 <= lr < math.inf):
        raise OnecurveError(f"{owner}: lr must be a number of at least 0, got {lr!r}")
