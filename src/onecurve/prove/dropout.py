"""Disables dropout: its masks differ between plans, so that runs with dropout cannot be compared."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from onecurve.prove.backward_function_mode import BackwardFunctionMode

_DROPOUT_ARGUMENT = {
    F.dropout: ("p", 1),
    F.alpha_dropout: ("p", 1),
    F.feature_alpha_dropout: ("p", 1),
    F.dropout1d: ("p", 1),
    F.dropout2d: ("p", 1),
    F.dropout3d: ("p", 1),
    torch.dropout: ("p", 1),
    F.scaled_dot_product_attention: ("dropout_p", 4),
}
"""Functions with dropout → the name and position of the argument that is its probability."""


def disable_dropout(module: nn.Module) -> int:
    """Set the dropout probability of every submodule to 0; return how many had another one."""
    changed = 0
    for submodule in module.modules():
        attribute = "p" if isinstance(submodule, _DropoutNd) else "dropout"
        has_dropout = isinstance(submodule, _DropoutNd | nn.MultiheadAttention | nn.RNNBase)
        if has_dropout and getattr(submodule, attribute):
            setattr(submodule, attribute, 0.0)
            changed += 1
    return changed


class NoDropout(BackwardFunctionMode):
    """Disables dropout that a model applies by calling functions instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.triggered = False
        """True if a function was called with a dropout probability above 0."""

    def call(self, function: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function in _DROPOUT_ARGUMENT:
            name, position = _DROPOUT_ARGUMENT[function]
            probability = kwargs.get(name, arguments[position] if len(arguments) > position else 0.0)
            self.triggered = self.triggered or bool(probability)
            if len(arguments) > position:
                arguments = (*arguments[:position], 0.0, *arguments[position + 1 :])
            else:
                kwargs[name] = 0.0
        return function(*arguments, **kwargs)
