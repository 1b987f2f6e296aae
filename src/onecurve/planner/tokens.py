"""The number of tokens in a sample, for jobs whose samples are recognizably sequences of tokens."""

from collections.abc import Mapping
from typing import TypeGuard

from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.costs import Tokens
from onecurve.job.batch import MicroBatch

_TOKEN_INPUT = "input_ids"
"""The name of the tokens among the inputs of a Hugging Face model."""


def tokens_of(micro: MicroBatch) -> Tokens | None:
    """Return the tokens of each sample in a collated micro-batch, or None if the samples are not known to be sequences.

    A sequence is the input `input_ids`, or an integer input of shape (samples, length) whose target has the same shape
    and is of integers too: the model predicts a token for each token. Other integers may be categories, so they are not
    counted.
    """
    named = micro.inputs.get(_TOKEN_INPUT) if isinstance(micro.inputs, Mapping) else None
    if _is_sequence(named):
        return Tokens(named.shape[1], f"the length of {_TOKEN_INPUT}")
    target = micro.target
    for leaf in pytree.tree_leaves(micro.inputs):
        if _is_sequence(leaf) and _is_sequence(target) and leaf.shape == target.shape:
            return Tokens(leaf.shape[1], "the length of an integer input with a target of the same shape")
    return None


def _is_sequence(value: object) -> TypeGuard[Tensor]:
    """True for integers of shape (samples, length)."""
    return (
        isinstance(value, Tensor)
        and value.dim() == 2
        and value.shape[1] > 1
        and not (value.is_floating_point() or value.is_complex())
    )
