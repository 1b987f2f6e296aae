"""Takes a user's torch.compile off a model: splits need the original modules and their names."""

from typing import Any

from torch import nn

COMPILE_REMOVED = (
    "the model's own torch.compile was taken off, because a compiled model cannot be split; `compile` in the plan "
    "compiles every block"
)


def is_compiled(model: nn.Module) -> bool:
    """True if the model or one of its modules was compiled."""
    return any(
        _original(module) is not module
        or module._compiled_call_impl is not None
        or hasattr(module.__dict__.get("forward"), "_torchdynamo_orig_callable")
        for module in model.modules()
    )


def without_compile(model: nn.Module) -> nn.Module:
    """Return the original model. Its modules are replaced by the original ones in place."""
    model = _original(model)
    for module in model.modules():
        module._compiled_call_impl = None
        if "forward" in module.__dict__:
            module.forward = _original_function(module.forward)
        for name, child in module._modules.items():
            if child is not None:
                module._modules[name] = _original(child)
    return model


def _original(module: nn.Module) -> nn.Module:
    """The module that torch.compile wrapped, or the module itself. (The wrapper's class takes a second to import.)"""
    while isinstance(inner := module._modules.get("_orig_mod"), nn.Module):
        module = inner
    return module


def _original_function(function: Any) -> Any:
    """The function that torch.compile wrapped, or the function itself."""
    while (inner := getattr(function, "_torchdynamo_orig_callable", None)) is not None:
        function = inner
    return function
