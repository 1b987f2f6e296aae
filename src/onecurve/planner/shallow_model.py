"""A model with fewer blocks: of many identical blocks only some compute, and the others return their input."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.measure.module_calls import ModuleCall, ModuleKind
from onecurve.model.compiled import without_compile


class ShallowModel:
    """A constructor that builds the user's model and leaves out some of its blocks."""

    def __init__(self, build: Callable[[], nn.Module], left_out: Iterable[str]) -> None:
        """`left_out`: the names of the blocks that return their input."""
        self._build, self._left_out = build, tuple(left_out)

    def __call__(self) -> nn.Module:
        module = without_compile(self._build())
        for name in self._left_out:
            module.set_submodule(name, PassThrough(module.get_submodule(name)))
        return module


class PassThrough(nn.Module):
    """Returns its first input tensor. It has the plain attributes of the block that it replaces, and no parameters."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        for name, value in vars(block).items():  # a model may read the settings of its blocks
            self.__dict__.setdefault(name, value)

    def forward(self, *arguments: Any, **kwargs: Any) -> Tensor:
        return next(leaf for leaf in pytree.tree_leaves((arguments, kwargs)) if isinstance(leaf, Tensor))


def surplus_blocks(kinds: Iterable[ModuleKind], count: int) -> list[str]:
    """Return the blocks that can be left out if `count` of each kind stay."""
    return [name for kind in kinds if _returns_like_its_input(kind.first) for name in kind.names[count:]]


def _returns_like_its_input(call: ModuleCall) -> bool:
    output, tensor = call.output, call.first_tensor
    if not isinstance(output, Tensor) or tensor is None:
        return False
    return output.shape == tensor.shape and output.dtype == tensor.dtype
