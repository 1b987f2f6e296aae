"""torch.compile of the blocks of a model: which shapes it compiles for, what its errors mean, and trials without it."""

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import CodeType
from typing import Any

import torch
from torch import nn

from onecurve.describe.errors import OnecurveError

_COMPILATIONS_PER_BLOCK = 8
"""Times that a block may be compiled: for training and evaluation, each with full and last micro-batches, and spare."""


def compile_blocks(blocks: Iterable[nn.Module]) -> None:
    """Let torch.compile compile these modules when they are first called.

    Blocks of one class share their compiled code. If their parameters have different shapes, as in the stages of a
    ResNet, torch would take the second shape for a dimension that varies and compile for any size, which is slower
    and which Inductor does not support for all operations. Such blocks are compiled once for each of their shapes.
    """
    by_code: dict[CodeType, list[nn.Module]] = defaultdict(list)
    for block in blocks:
        by_code[type(block).forward.__code__].append(block)
    for alike in by_code.values():
        kinds = {_shapes_of(block) for block in alike}
        for block in alike:
            block.compile(dynamic=False if len(kinds) > 1 else None)
        if len(kinds) > 1:
            # Beyond torch's limit of 8, blocks would run eagerly, and only a log would say so.
            config: Any = torch._dynamo.config
            config.recompile_limit = max(config.recompile_limit, _COMPILATIONS_PER_BLOCK * len(kinds))


def _shapes_of(block: nn.Module) -> frozenset[tuple[str, torch.Size]]:
    tensors = [*block.named_parameters(), *block.named_buffers()]
    return frozenset((name, tensor.shape) for name, tensor in tensors)


def uncompiled() -> AbstractContextManager[Any]:
    """A context for trials, in which compiled functions run eagerly: a trial has other shapes than the training, and
    to compile for them takes minutes."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes seconds
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance


@contextmanager
def explained_compilation(plan: object) -> Iterator[None]:
    """Context manager that turns an error of torch.compile into an OnecurveError that names the plan."""
    try:
        yield
    except Exception as error:
        causes = [error, error.__cause__] if isinstance(error, OnecurveError) else [error]
        of_compiler = next((cause for cause in causes if _is_of_compiler(cause)), None)
        if of_compiler is None:
            raise
        lines = [line for line in str(of_compiler).splitlines() if line.strip()]
        reason = f"{type(of_compiler).__name__}: {lines[0] if lines else ''}"
        raise OnecurveError(
            f"plan {plan}: torch.compile cannot compile the blocks of this model ({reason}); leave `compile` out of "
            "the plan, or see what it says with TORCH_LOGS=+dynamo"
        ) from of_compiler


def _is_of_compiler(error: BaseException | None) -> bool:
    dynamo = sys.modules.get("torch._dynamo.exc")
    return dynamo is not None and isinstance(error, dynamo.TorchDynamoException)
