"""Runs code that torch.compile has compiled as it was written."""

import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


def uncompiled() -> AbstractContextManager[Any]:
    """A context for trials, in which compiled functions run eagerly: a trial has other shapes than the training, and
    to compile for them takes minutes."""
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes seconds
        return nullcontext()
    stance: AbstractContextManager[Any] = torch.compiler.set_stance("force_eager")
    return stance
