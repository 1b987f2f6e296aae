"""Optimizer specifications: a torch.optim class, its settings, and other settings for groups of parameters."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.job.adafactor import Adafactor as _Adafactor
from onecurve.job.full_parameter import FullParameterOptimizer
from onecurve.job.layerwise import LAMB as _LAMB
from onecurve.job.layerwise import LARS as _LARS
from onecurve.job.layerwise import LayerWise
from onecurve.job.muon import Muon as _Muon

NamedParameters = Iterable[tuple[str, nn.Parameter]]
OptimizerFactory = Callable[[NamedParameters], torch.optim.Optimizer]
"""A function that builds a torch optimizer from (name, parameter) pairs."""
Groups = Mapping[str, Mapping[str, Any]]
"""Settings by a pattern of parameter names."""

ELEMENTWISE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
"""torch.optim classes that update every element independently, so that each rank can update its own shard."""

_STATE_TENSORS = {
    "Adam": 2,
    "AdamW": 2,
    "NAdam": 2,
    "RAdam": 2,
    "Adamax": 2,
    "Adadelta": 2,
    "Adagrad": 1,
    "RMSprop": 1,
    "LAMB": 2,
    "LARS": 1,
    "Muon": 2,
}


@dataclass(frozen=True)
class Optimizer:
    """An optimizer class of `torch.optim` (or your own) with its settings.

    Args:
        kind: The optimizer class, for example `torch.optim.RMSprop`.
        settings: Keyword arguments of its constructor, for example `{"lr": 1e-3}`.
        groups: Other settings for some of the parameters. A key is a pattern of parameter names, where `*` matches any
            text and `|` separates alternatives; its value is a dict of settings. A parameter uses the first pattern
            that matches its name; a pattern that matches no trained parameter is an error. Default: no groups.

    torch's fused kernel is used if the class has one and `settings` does not choose another implementation.

    Example::

        oc.Optimizer(torch.optim.RMSprop, {"lr": 1e-3}, groups={"*.bias|*norm*": {"weight_decay": 0.0}})
    """

    kind: type[torch.optim.Optimizer]
    settings: Mapping[str, Any]
    groups: Groups = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.groups, Mapping):
            raise OnecurveError(
                f"{self.kind.__name__}: groups must be a dict of name pattern → settings, for example "
                f"groups={{'*.bias|*norm*': {{'weight_decay': 0.0}}}}; got {type(self.groups).__name__}"
            )
        known = list(inspect.signature(self.kind.__init__).parameters)[2:]
        for settings in (self.settings, *self.groups.values()):
            for name in settings:
                if name not in known:
                    raise OnecurveError(f"{self.kind.__name__}: unknown setting {name!r} ({nearest(name, known)})")

    def __call__(self, named_parameters: NamedParameters) -> torch.optim.Optimizer:
        """Build the torch optimizer, with the parameters that match no pattern in its first group."""
        members: dict[str, list[nn.Parameter]] = {pattern: [] for pattern in self.groups}
        rest: list[nn.Parameter] = []
        for name, parameter in named_parameters:
            pattern = next((p for p in self.groups if matches(name, p)), None)
            (rest if pattern is None else members[pattern]).append(parameter)
        groups = [
            {"params": parameters, **self.groups[pattern]} for pattern, parameters in members.items() if parameters
        ]
        if rest:
            groups.insert(0, {"params": rest})
        return self.kind(groups, **self._settings_with_fused(groups))

    def refuse_unmatched(self, names: Sequence[str]) -> None:
        """Raise OnecurveError for a pattern that matches none of `names`, the trained parameters of the full model.

        This is not checked when the optimizer is built: one rank of a pipeline may have no parameter of a group.
        """
        for pattern in self.groups:
            if not any(matches(name, pattern) for name in names):
                raise OnecurveError(
                    f"optimizer: the group {pattern!r} matches no trained parameter; the first names are "
                    f"{', '.join(names[:5])}"
                )

    @property
    def state_tensors(self) -> int:
        """Number of optimizer-state tensors per parameter, each of the parameter's size; 0 if it is not known."""
        if self.kind is torch.optim.SGD:
            return 1 if self.settings.get("momentum") else 0
        return _STATE_TENSORS.get(self.kind.__name__, 0)

    def _settings_with_fused(self, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """The settings, with torch's fused kernel selected if possible.

        It is faster, and it can skip an update by a flag on the device, before the host knows.
        """
        settings = dict(self.settings)
        parameters = inspect.signature(self.kind.__init__).parameters
        floating = all(parameter.is_floating_point() for group in groups for parameter in group["params"])
        if (
            floating
            and "fused" in parameters
            and not {"fused", "foreach", "capturable", "differentiable"} & set(settings)
        ):
            settings["fused"] = True
        return settings


def AdamW(  # noqa: N802
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    groups: Groups | None = None,
) -> Optimizer:
    """AdamW: Adam with decoupled weight decay (`torch.optim.AdamW`).

    Args:
        lr: Learning rate, before the schedule. Default: 1e-3.
        betas: Decay rates of the running averages of the gradient and of its square. Default: (0.9, 0.999).
        eps: Number added to the denominator for numerical stability. Default: 1e-8.
        weight_decay: Weight-decay coefficient. Default: 1e-2.
        groups: Other settings by a pattern of parameter names, for example `{"*.bias": {"weight_decay": 0.0}}`; see
            `Optimizer`. Default: None.

    Example::

        oc.AdamW(lr=3e-4, weight_decay=0.1, groups={"*norm*|*.bias": {"weight_decay": 0.0}})
    """
    settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    return Optimizer(torch.optim.AdamW, settings, groups or {})


def SGD(  # noqa: N802
    lr: float = 1e-2,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    groups: Groups | None = None,
) -> Optimizer:
    """Stochastic gradient descent, optionally with momentum (`torch.optim.SGD`).

    Args:
        lr: Learning rate, before the schedule. Default: 1e-2.
        momentum: Momentum factor. Default: 0.
        weight_decay: L2 penalty. Default: 0.
        nesterov: Use Nesterov momentum. Default: False.
        groups: Other settings by a pattern of parameter names; see `Optimizer`. Default: None.

    Example::

        oc.SGD(lr=0.1, momentum=0.9, weight_decay=1e-4)
    """
    settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
    return Optimizer(torch.optim.SGD, settings, groups or {})


def LAMB(  # noqa: N802
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    groups: Groups | None = None,
) -> Optimizer:
    """LAMB: Adam for large batches, with each parameter's update scaled to the parameter's norm (arXiv:1904.00962).

    Exclude normalization layers and biases from the scaling:
    `groups={"*norm*|*.bias": {"adapt": False, "weight_decay": 0.0}}`.

    Args:
        lr: Learning rate, before the schedule. Default: 1e-3.
        betas: Decay rates of the running averages of the gradient and of its square. Default: (0.9, 0.999).
        eps: Number added to the denominator for numerical stability. Default: 1e-6.
        weight_decay: Weight-decay coefficient. Default: 0.01.
        groups: Other settings by a pattern of parameter names; see `Optimizer`. Default: None.

    Example::

        oc.LAMB(lr=oc.sqrt_scaling(1e-3, batch=4096), groups={"*norm*|*.bias": {"adapt": False, "weight_decay": 0.0}})
    """
    return Optimizer(_LAMB, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, groups or {})


def LARS(  # noqa: N802
    lr: float = 1.0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust: float = 1e-3,
    groups: Groups | None = None,
) -> Optimizer:
    """LARS: SGD with momentum for large batches of images, with a learning rate per parameter (arXiv:1708.03888).

    Exclude normalization layers and biases from the scaling:
    `groups={"*norm*|*.bias": {"adapt": False, "weight_decay": 0.0}}`.

    Args:
        lr: Learning rate, before the schedule. Default: 1.0.
        momentum: Momentum factor. Default: 0.9.
        weight_decay: Weight-decay coefficient. Default: 0.
        trust: Trust coefficient: each parameter's learning rate is
            lr × trust × |parameter| / (|gradient| + weight_decay × |parameter|). Default: 1e-3.
        groups: Other settings by a pattern of parameter names; see `Optimizer`. Default: None.

    Example::

        oc.LARS(lr=oc.linear_scaling(1.0, batch=8192), weight_decay=1e-4, groups={"*bn*|*.bias": {"adapt": False}})
    """
    settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
    return Optimizer(_LARS, settings, groups or {})


def Muon(  # noqa: N802
    lr: float = 2e-2,
    momentum: float = 0.95,
    weight_decay: float = 0.1,
    nesterov: bool = True,
    steps: int = 5,
    adam: str = "",
    adam_lr: float = 3e-4,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
) -> Optimizer:
    """Muon: momentum whose update of each weight matrix is made orthogonal, and AdamW for everything else.

    Matrices are updated as `torch.optim.Muon` does. On a plan that shards parameters, full matrices are gathered in
    turn, each on one rank, so that the ranks share the work.

    Args:
        lr: Learning rate of matrices, before the schedule. Default: 2e-2.
        momentum: Momentum factor. Default: 0.95.
        weight_decay: Weight-decay coefficient, of matrices and of other parameters. Default: 0.1.
        nesterov: Use Nesterov momentum. Default: True.
        steps: Newton-Schulz iterations. Default: 5.
        adam: Pattern of names of matrices that AdamW updates: embeddings and the output layer, for example
            `"embed*|head*"`. Parameters that are no matrices are updated by AdamW in any case. Default: `""`, none.
        adam_lr: Learning rate of AdamW, before the schedule. Default: 3e-4.
        betas: Decay rates of AdamW's averages. Default: (0.9, 0.95).
        eps: Number added to AdamW's denominator. Default: 1e-8.

    Example::

        oc.Muon(lr=0.02, adam="embed*|head*", adam_lr=3e-4)
    """
    settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov, "steps": steps}
    of_adam = {"adam_lr": adam_lr, "betas": betas, "eps": eps}
    return Optimizer(_Muon, {**settings, **of_adam}, {adam: {"orthogonal": False}} if adam else {})


def Adafactor(  # noqa: N802
    lr: float = 1e-2,
    beta2_decay: float = -0.8,
    eps: tuple[float | None, float] = (None, 1e-3),
    d: float = 1.0,
    weight_decay: float = 0.0,
    groups: Groups | None = None,
) -> Optimizer:
    """Adafactor: Adam's second moment, kept as one number per row and per column (`torch.optim.Adafactor`).

    On a plan that shards parameters, the sums over rows and columns are added up over the ranks.

    Args:
        lr: Learning rate relative to the root mean square of a parameter, before the schedule; step n uses at most
            1 / sqrt(n). Default: 1e-2.
        beta2_decay: Exponent with which the decay of the second moment approaches 1. Default: -0.8.
        eps: Smallest second moment (None: that of the dtype), and smallest root mean square of a parameter. Default:
            (None, 1e-3).
        d: Largest root mean square of an update. Default: 1.0.
        weight_decay: Weight-decay coefficient. Default: 0.
        groups: Other settings by a pattern of parameter names; see `Optimizer`. Default: None.

    Example::

        oc.Adafactor(lr=1e-2)
    """
    settings = {"lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay}
    return Optimizer(_Adafactor, settings, groups or {})


def matches(name: str, pattern: str) -> bool:
    """True if a parameter's name matches one of the alternatives of a pattern, which are separated by `|`."""
    return any(fnmatchcase(name, alternative) for alternative in pattern.split("|"))


def refuse_if_not_shardable(optimizer: torch.optim.Optimizer, plan: str) -> None:
    """Raise OnecurveError if the optimizer may give wrong results when a rank has only a shard of each parameter.

    An elementwise optimizer can update shards. Others, for example those that orthogonalize a matrix, need the full
    parameter.
    """
    kind = type(optimizer)
    elementwise = kind.__module__.startswith("torch.optim") and kind.__name__ in ELEMENTWISE
    knows_parts = isinstance(optimizer, LayerWise | FullParameterOptimizer)
    if not (elementwise or knows_parts or getattr(kind, "elementwise", False)):
        raise OnecurveError(
            f"plan {plan}: {kind.__name__} may need full parameters, but this plan shards them; use a plan without "
            f"'shard' and 'tensor', or one of oc.Muon, oc.Adafactor, oc.LAMB, oc.LARS, {', '.join(ELEMENTWISE)}. If "
            f"{kind.__name__} is your own class and updates every element independently, set elementwise = True in it"
        )


def load_optimizers() -> None:
    """Take one step on a tiny parameter. The first optimizer of a process makes torch import its compiler."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    parameter.grad = torch.zeros(1)
    torch.optim.AdamW([parameter], fused=True).step()
