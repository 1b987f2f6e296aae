"""Dropout masks differ between plans by nature, so a proof switches dropout off."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from onecurve.prove.backward_function_mode import BackwardFunctionMode

_PROBABILITY = {
    F.dropout: ("p", 1),
    F.alpha_dropout: ("p", 1),
    F.feature_alpha_dropout: ("p", 1),
    F.dropout1d: ("p", 1),
    F.dropout2d: ("p", 1),
    F.dropout3d: ("p", 1),
    torch.dropout: ("p", 1),
    F.scaled_dot_product_attention: ("dropout_p", 4),
}
"""Functions that drop, the name of their probability and its place among the arguments."""


def switch_off(module: nn.Module) -> int:
    """Set the probability of every module that drops to zero; how many there were."""
    found = 0
    for each in module.modules():
        name = "p" if isinstance(each, _DropoutNd) else "dropout"
        if isinstance(each, _DropoutNd | nn.MultiheadAttention | nn.RNNBase) and getattr(each, name):
            setattr(each, name, 0.0)
            found += 1
    return found


class NoDropout(BackwardFunctionMode):
    """Switches off what a model drops by calling functions; `found` says whether there was any."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def call(self, function: Any, arguments: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if function in _PROBABILITY:
            name, place = _PROBABILITY[function]
            probability = kwargs.get(name, arguments[place] if len(arguments) > place else 0.0)
            self.found = self.found or bool(probability)
            if len(arguments) > place:
                arguments = (*arguments[:place], 0.0, *arguments[place + 1 :])
            else:
                kwargs[name] = 0.0
        return function(*arguments, **kwargs)
