"""Names the module whose forward is running, for messages about an operation within it."""

from types import FrameType

from torch import nn


def running_modules(frame: FrameType | None) -> list[nn.Module]:
    """Return the modules whose methods are running in a frame and its callers, innermost first."""
    modules: list[nn.Module] = []
    while frame is not None:
        candidate = frame.f_locals.get("self")
        if isinstance(candidate, nn.Module):
            modules.append(candidate)
        frame = frame.f_back
    return modules


def module_text(modules: list[nn.Module]) -> str:
    """Return `module 'NAME' (CLASS)` for the innermost module, with its name in the outermost one; `model` if none is
    running."""
    if not modules:
        return "model"
    name = next((name for name, module in modules[-1].named_modules() if module is modules[0]), "")
    kind = type(modules[0]).__name__
    return f"module {name!r} ({kind})" if name else f"module {kind}"
