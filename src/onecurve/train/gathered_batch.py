"""The embeddings of a batch that is divided into rounds and ranks, put together on every rank in the batch's order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError
from onecurve.device.collectives import Group, all_gather

_MAX_DIMS = 6


@dataclass(frozen=True)
class GatheredBatch:
    """Values of all samples, and where those of this rank are."""

    values: Any
    """Nested like those of a part. The first dimension of a tensor are the samples; one without dimensions is the same
    in all parts."""
    samples: int
    own: tuple[tuple[int, int], ...]
    """Samples [begin, end) of each part of this rank."""


def gather_batch(group: Group, parts: Sequence[tuple[Any, int]]) -> GatheredBatch:
    """Put the parts of all ranks together, round by round and in a round rank by rank. Every rank of `group` calls it.

    `parts`: for each round, its values, whose structure is the same in all parts, and its number of samples. A filler
    has none, but values of one sample.
    """
    structure = pytree.tree_structure(parts[0][0])
    leaves = [pytree.tree_leaves(values) for values, _ in parts]
    counts = _gather_counts(group, leaves, [samples for _, samples in parts])
    rank = group.rank() if group is not None else 0
    own = []
    for number in range(len(parts)):
        begin = int(counts[:, :number].sum() + counts[:rank, number].sum())
        own.append((begin, begin + int(counts[rank, number])))
    joined = [_join(group, [each[index] for each in leaves], counts) for index in range(len(leaves[0]))]
    return GatheredBatch(pytree.tree_unflatten(joined, structure), int(counts.sum()), tuple(own))


def _gather_counts(group: Group, leaves: Sequence[Sequence[Any]], samples: Sequence[int]) -> Tensor:
    """The samples of each part, [ranks, rounds]. Refuses values that cannot be put together, on all ranks alike."""
    shapes = {tuple(_shape(leaf) for leaf in each) for each in leaves}
    described = [number for shape in min(shapes) for number in shape]
    is_refused = len(shapes) > 1
    own = torch.tensor([len(described), is_refused, *samples])
    heads = all_gather(group, own)
    is_refused = is_refused or bool((heads[:, 0] != len(described)).any() or heads[:, 1].any())
    if not is_refused:
        of_ranks = all_gather(group, torch.tensor(described, dtype=torch.int64))
        is_refused = bool((of_ranks != of_ranks[:1]).any()) or -1 in described
    if is_refused:
        raise OnecurveError(
            "loss.whole_batch: the embeddings and targets of all samples must be tensors of the same shape, because "
            f"they are put together; the first part of this rank has {', '.join(map(_described, leaves[0]))}"
        )
    return heads[:, 2:]


def _shape(leaf: Any) -> tuple[int, ...]:
    """The shape without samples, as so many numbers for every tensor; -1 for what cannot be put together."""
    if leaf is None:
        return (0,) * (_MAX_DIMS + 1)
    if not isinstance(leaf, Tensor) or leaf.dim() > _MAX_DIMS:
        return (-1,) * (_MAX_DIMS + 1)
    return (leaf.dim(), *leaf.shape[1:], *(0,) * (_MAX_DIMS - max(0, leaf.dim() - 1)))


def _described(leaf: Any) -> str:
    return f"a tensor of shape {list(leaf.shape)}" if isinstance(leaf, Tensor) else type(leaf).__name__


def _join(group: Group, parts: Sequence[Any], counts: Tensor) -> Any:
    if parts[0] is None or parts[0].dim() == 0:
        return parts[0]
    longest = int(counts.max())
    padded = parts[0].new_zeros(len(parts), longest, *parts[0].shape[1:])
    own = counts[group.rank() if group is not None else 0].tolist()
    for row, part, count in zip(padded, parts, own, strict=True):
        row[:count] = part[:count]
    gathered = all_gather(group, padded)
    ranks, rounds = counts.shape
    return torch.cat(
        [gathered[rank, number, : counts[rank, number]] for number in range(rounds) for rank in range(ranks)]
    )
