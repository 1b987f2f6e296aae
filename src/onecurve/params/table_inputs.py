"""Which inputs of a model have the ids of its embedding tables: learned from one step, used for the steps after it."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from onecurve.job.batch import MicroBatch

TableInputs = Mapping[str, Sequence[str]]
"""By table: names of the inputs that have its ids."""


def learn_inputs(asked: Mapping[str, Tensor], rounds: Sequence[MicroBatch]) -> tuple[TableInputs, Sequence[str]]:
    """Return the inputs of each table, and the tables of which no inputs are found.

    `asked`: the distinct ids that each table was asked for in these rounds.
    """
    inputs = {name: _distinct(tensors) for name, tensors in _integers(rounds).items()}
    found = {table: _inputs_with(ids, inputs) for table, ids in asked.items()}
    return found, [table for table, names in found.items() if not names and asked[table].numel()]


def ids_in(inputs: TableInputs, rounds: Sequence[MicroBatch]) -> dict[str, Tensor]:
    """Return the distinct ids of each table in some rounds, in ascending order."""
    tensors = _integers(rounds)
    return {
        table: _distinct(each for name in names for each in tensors.get(name, ())) for table, names in inputs.items()
    }


def _inputs_with(asked: Tensor, inputs: Mapping[str, Tensor]) -> list[str]:
    """The inputs whose ids are among those that were asked for, if together they have them all. One of them may have
    been among them by chance: it is better to fetch too many rows than too few."""
    within = {name: ids for name, ids in inputs.items() if ids.numel() and bool(torch.isin(ids, asked).all())}
    return [*within] if torch.equal(_distinct(within.values()), asked) else []


def _integers(rounds: Sequence[MicroBatch]) -> dict[str, list[Tensor]]:
    """The tensors of integers among the inputs, by their names."""
    found: dict[str, list[Tensor]] = {}
    for micro in rounds:
        for path, leaf in pytree.tree_flatten_with_path(micro.inputs)[0]:
            if isinstance(leaf, Tensor) and leaf.dtype in (torch.int64, torch.int32):
                found.setdefault(pytree.keystr(path), []).append(leaf)
    return found


def _distinct(tensors: Iterable[Tensor]) -> Tensor:
    flat = [each.flatten().to("cpu", torch.int64) for each in tensors]
    return torch.unique(torch.cat(flat)) if flat else torch.empty(0, dtype=torch.int64)
