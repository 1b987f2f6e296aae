"""Models with adapters (LoRA and others of peft): a frozen base, and a few tensors that are trained.

Only what is trained is saved and exported. The base is what the job builds, or loads from `weights`.
"""

import re
from collections.abc import Mapping

from torch import nn

_PREFIX = "base_model.model."
_INSIDE = re.compile(r"\.(?:base_layer|original_module|modules_to_save\.[^.]+)(?=\.)")
"""Names of modules that peft adds around those of the base."""


def has_adapters(model: nn.Module) -> bool:
    """True for a model of peft."""
    return any(kind.__name__ == "PeftModel" and kind.__module__.startswith("peft.") for kind in type(model).__mro__)


def frozen_base(model: nn.Module) -> set[str]:
    """Names of the parameters that belong to the base of a model with adapters; empty for other models."""
    if not has_adapters(model):
        return set()
    return {name for name, parameter in model.named_parameters() if not parameter.requires_grad}


def stored_names(model: nn.Module, first_names: Mapping[str, str]) -> dict[str, list[str]]:
    """Each name that a file of weights may have → the names of the tensors that it fills. A file has the names of the
    base, without adapters. `first_names`: every name of a tensor → its first one, by which ties are known."""
    names: dict[str, list[str]] = {}
    for name, first in first_names.items():
        stored = _INSIDE.sub("", name.removeprefix(_PREFIX)) if has_adapters(model) else name
        names.setdefault(stored, []).append(first)
    return names
