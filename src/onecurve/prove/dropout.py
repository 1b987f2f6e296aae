"""Dropout masks differ between plans by nature, so a proof switches dropout off."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

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


class NoDropout(TorchFunctionMode):
    """Switches off what a model drops by calling functions; `found` says whether there was any."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func in _PROBABILITY:
            name, place = _PROBABILITY[func]
            probability = kwargs.get(name, args[place] if len(args) > place else 0.0)
            self.found = self.found or bool(probability)
            if len(args) > place:
                args = (*args[:place], 0.0, *args[place + 1 :])
            else:
                kwargs[name] = 0.0
        return func(*args, **kwargs)
