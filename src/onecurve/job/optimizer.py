"""Which optimizer, with which settings for which parameters. Any class of torch.optim can be named."""

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from onecurve.describe.convert import nearest
from onecurve.describe.errors import OnecurveError
from onecurve.job.layerwise import LAMB as _LAMB
from onecurve.job.layerwise import LARS as _LARS
from onecurve.job.layerwise import LayerWise

NamedParameters = Iterable[tuple[str, nn.Parameter]]
OptimizerFactory = Callable[[NamedParameters], torch.optim.Optimizer]
Groups = Mapping[str, Mapping[str, Any]]

ELEMENTWISE = ("ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop", "SGD")
"""torch.optim classes that treat every element alone, so that a shard of a parameter may be updated by itself."""

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
}


@dataclass(frozen=True)
class Optimizer:
    """`Optimizer(torch.optim.RMSprop, {"lr": 1e-3}, groups={"*.bias": {"weight_decay": 0.0}})`

    A group's key is a pattern of parameter names (`*` any text, `|` or); a parameter takes the first that matches.
    """

    kind: type[torch.optim.Optimizer]
    settings: Mapping[str, Any]
    groups: Groups = field(default_factory=dict)

    def __post_init__(self) -> None:
        known = list(inspect.signature(self.kind.__init__).parameters)[2:]
        for source in (self.settings, *self.groups.values()):
            for name in source:
                if name not in known:
                    raise OnecurveError(f"{self.kind.__name__}: unknown setting {name!r} ({nearest(name, known)})")

    def __call__(self, named_parameters: NamedParameters) -> torch.optim.Optimizer:
        members: dict[str, list[nn.Parameter]] = {pattern: [] for pattern in self.groups}
        rest: list[nn.Parameter] = []
        for name, parameter in named_parameters:
            pattern = next((p for p in self.groups if matches(name, p)), None)
            (rest if pattern is None else members[pattern]).append(parameter)
        groups = [{"params": found, **self.groups[pattern]} for pattern, found in members.items() if found]
        if rest:
            groups.insert(0, {"params": rest})
        return self.kind(groups, **self._fused(groups))

    def refuse_unmatched(self, names: Sequence[str]) -> None:
        """A pattern that matches none of all trained parameters is a mistake; a rank may well have none of them."""
        for pattern in self.groups:
            if not any(matches(name, pattern) for name in names):
                raise OnecurveError(
                    f"optimizer: the group {pattern!r} matches no trained parameter; the first names are "
                    f"{', '.join(names[:5])}"
                )

    @property
    def state_tensors(self) -> int:
        """How many tensors of a parameter's size the optimizer keeps; 0 where it is not known."""
        if self.kind is torch.optim.SGD:
            return 1 if self.settings.get("momentum") else 0
        return _STATE_TENSORS.get(self.kind.__name__, 0)

    def _fused(self, groups: list[dict[str, Any]]) -> dict[str, Any]:
        """torch's fused kernel where the class has one: faster, and it can skip an update before the host knows."""
        chosen = dict(self.settings)
        parameters = inspect.signature(self.kind.__init__).parameters
        floating = all(parameter.is_floating_point() for group in groups for parameter in group["params"])
        if (
            floating
            and "fused" in parameters
            and not {"fused", "foreach", "capturable", "differentiable"} & set(chosen)
        ):
            chosen["fused"] = True
        return chosen


def AdamW(  # noqa: N802
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 1e-2,
    groups: Groups | None = None,
) -> Optimizer:
    settings = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
    return Optimizer(torch.optim.AdamW, settings, groups or {})


def SGD(  # noqa: N802
    lr: float = 1e-2,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    groups: Groups | None = None,
) -> Optimizer:
    settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "nesterov": nesterov}
    return Optimizer(torch.optim.SGD, settings, groups or {})


def LAMB(  # noqa: N802
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-6,
    weight_decay: float = 0.01,
    groups: Groups | None = None,
) -> Optimizer:
    """For large batches. Give norms and biases `{"adapt": False, "weight_decay": 0.0}`."""
    return Optimizer(_LAMB, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}, groups or {})


def LARS(  # noqa: N802
    lr: float = 1.0,
    momentum: float = 0.9,
    weight_decay: float = 0.0,
    trust: float = 1e-3,
    groups: Groups | None = None,
) -> Optimizer:
    """For large batches of images. Give norms and biases `{"adapt": False, "weight_decay": 0.0}`."""
    settings = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "trust": trust}
    return Optimizer(_LARS, settings, groups or {})


def matches(name: str, pattern: str) -> bool:
    return any(fnmatchcase(name, one) for one in pattern.split("|"))


def refuse_if_whole_needed(optimizer: torch.optim.Optimizer, plan: str) -> None:
    """A sharded plan updates parts of parameters; an optimizer that looks at whole matrices would compute otherwise."""
    kind = type(optimizer)
    known = kind.__module__.startswith("torch.optim") and kind.__name__ in ELEMENTWISE
    if not (known or isinstance(optimizer, LayerWise) or getattr(kind, "elementwise", False)):
        raise OnecurveError(
            f"plan {plan}: {kind.__name__} may need whole parameters, this plan holds parts of them; use a plan "
            f"without 'shard' and 'tensor', or one of LAMB, LARS, {', '.join(ELEMENTWISE)}. An optimizer of your own "
            "that treats every element alone can say so: elementwise = True in its class"
        )
