"""Gradient hooks that a constructor registers on parameters: `register_hook`, `register_post_accumulate_grad_hook`."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

_ATTRIBUTES = ("_backward_hooks", "_post_accumulate_grad_hooks")


@dataclass(frozen=True)
class GradientHooks:
    """The hooks of one parameter, by the numbers of their handles. `handle.remove()` removes them here too."""

    of_gradient: Mapping[int, Callable[[Tensor], Tensor | None]]
    """Hooks that may return another gradient."""
    after_accumulation: Mapping[int, Callable[[Any], None]]
    """Hooks that are called with the parameter once it has its gradient."""

    def __bool__(self) -> bool:
        return bool(self.of_gradient or self.after_accumulation)


def copy_gradient_hooks(source: Tensor, target: Tensor) -> None:
    """Register the hooks of a tensor on another one, which stands for it from now on."""
    for attribute in _ATTRIBUTES:
        if hooks := getattr(source, attribute):
            setattr(target, attribute, hooks)  # the same dict: the user's handles refer to it


def take_gradient_hooks(model: nn.Module) -> dict[str, GradientHooks]:
    """Take the hooks off all parameters that have any; return them by every name of the parameter."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    hooks = {
        name: GradientHooks(*(getattr(each, key) or {} for key in _ATTRIBUTES)) for name, each in parameters.items()
    }
    hooks = {name: of_parameter for name, of_parameter in hooks.items() if of_parameter}
    for name in hooks:
        for attribute in _ATTRIBUTES:
            setattr(parameters[name], attribute, OrderedDict())  # None would not take off what runs after accumulation
    return hooks
