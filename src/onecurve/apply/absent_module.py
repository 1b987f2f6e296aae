"""A placeholder for a module that another pipeline stage holds, and the model's own forward hooks on both."""

from collections.abc import Callable, Collection
from typing import Any

from torch import nn

from onecurve.describe.errors import OnecurveError

_CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
"""Modules that are indexed and iterated over, which a placeholder is not."""


class AbsentModule(nn.Module):
    """A placeholder whose forward returns what `output` returns, and that otherwise looks like the original module.

    isinstance() is true for the original's class, and other attributes are read from the original. The forward hooks of
    the original run, because a model may collect outputs with them. The output already contains what they changed, so
    what they return is ignored. Forward pre-hooks do not run: they compute weights, which this rank does not hold.
    """

    def __init__(self, name: str, module: nn.Module, output: Callable[[], Any]) -> None:
        """`name`: the module's name in the model."""
        super().__init__()
        self.__dict__["_name"] = name
        self.__dict__["_original"] = module  # not registered: this rank does not hold its parameters
        self.__dict__["_original_class"] = type(module)  # fully_shard changes the class of a module
        self._output = output
        copy_forward_hooks(module, self, ())
        for number, hook in self._forward_hooks.items():
            self._forward_hooks[number] = _without_result(hook)

    @property  # type: ignore[misc]
    def __class__(self) -> Any:
        """The class that isinstance() sees in addition to this one: a model may look for modules by their class."""
        return self.__dict__["_original_class"]

    def forward(self, *_: Any, **__: Any) -> Any:
        return self._output()

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            value = getattr(self.__dict__["_original"], name)
            if isinstance(value, nn.Module) and not isinstance(value, _CONTAINERS):
                return self._absent_child(name, value)
            return value

    def _absent_child(self, name: str, child: nn.Module) -> "AbsentModule":
        """A placeholder that is refused when it is called, because its output is unknown."""
        full_name = f"{self._name}.{name}"

        def refuse() -> None:
            raise OnecurveError(
                f"model: the forward calls {full_name!r} on a pipeline stage that does not hold it, without calling "
                "the block around it, and did not do so when it was traced; use another axis"
            )

        return AbsentModule(full_name, child, refuse)


def copy_forward_hooks(source: nn.Module, target: nn.Module, ignored: Collection[int]) -> None:
    """Register the forward hooks of one module on another too. `ignored`: ids of hooks that are not copied."""
    for number, hook in source._forward_hooks.items():
        if number not in ignored and number not in target._forward_hooks:
            target._forward_hooks[number] = hook
            for options in ("_forward_hooks_with_kwargs", "_forward_hooks_always_called"):
                if number in getattr(source, options):
                    getattr(target, options)[number] = True


def _without_result(hook: Callable[..., Any]) -> Callable[..., None]:
    def run(*arguments: Any) -> None:
        hook(*arguments)

    return run
