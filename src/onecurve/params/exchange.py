"""Which ranks hold the rows of a table, and how rows and gradients travel between them.

`Replicated`: every rank has all rows. `RowSharded`: every row is on one rank, chosen by the slot of its id. All ranks
call the methods together. Sums are taken in the order of the ranks, so that a run can be repeated bit by bit.
"""

from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from onecurve.describe.slots import SLOTS, owned_slots
from onecurve.device.collectives import Group
from onecurve.params.rows_by_id import RowsById
from onecurve.params.slots import owners_of, slots_of


class RowReader(Protocol):
    """Rows of one table on this rank."""

    def get(self, ids: Tensor) -> Tensor: ...


class Exchange(Protocol):
    """How the ranks share one table."""

    def fetch(self, store: RowReader, ids: Tensor) -> Tensor:
        """Return the rows of these ids, which are distinct, wherever they are."""

    def reduce(self, ids: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        """Send this rank's gradients to those who hold the rows; return those of the rows that this rank holds."""

    @property
    def counts(self) -> bool:
        """True if this rank adds the gradients of the rows that it holds to norms."""

    @property
    def slots(self) -> range:
        """The slots whose rows this rank holds."""

    def saves(self, slots: Tensor) -> Tensor:
        """Return True for each slot that this rank writes into checkpoints: each slot has one writer."""


class Replicated:
    """Every rank holds all rows, and updates them with the gradients of all ranks."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._rank, self._ranks = (0, 1) if group is None else (group.rank(), group.size())

    def fetch(self, store: RowReader, ids: Tensor) -> Tensor:
        return store.get(ids)

    def reduce(self, ids: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        if self._group is None:
            return ids, gradients
        sizes = _all_gather(self._group, torch.tensor([ids.numel()])).tolist()
        of_ranks = zip(_gather_rows(self._group, ids, sizes), _gather_rows(self._group, gradients, sizes), strict=True)
        return sum_by_id(list(of_ranks))

    @property
    def counts(self) -> bool:
        return self._rank == 0

    @property
    def slots(self) -> range:
        return range(SLOTS)

    def saves(self, slots: Tensor) -> Tensor:
        return owners_of(slots, self._ranks) == self._rank


class RowSharded:
    """Every row is on one rank, which answers the others and updates it with the sum of their gradients."""

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._rank, self._ranks = group.rank(), group.size()

    def fetch(self, store: RowReader, ids: Tensor) -> Tensor:
        order, sent = self._by_owner(ids)
        received = self._exchange_sizes(sent)
        asked = self._send(ids[order], sent, received)
        answers = self._send(store.get(asked), received, sent)
        rows = torch.empty_like(answers)
        rows[order] = answers
        return rows

    def reduce(self, ids: Tensor, gradients: Tensor) -> tuple[Tensor, Tensor]:
        return sum_by_id(self.send_to_owners(ids, gradients))

    def send_to_owners(self, ids: Tensor, lines: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Send a line for each id to the rank that holds its row; return what each rank has sent to this one."""
        order, sent = self._by_owner(ids)
        received = self._exchange_sizes(sent)
        of_ranks = zip(
            torch.split(self._send(ids[order], sent, received), received),
            torch.split(self._send(lines[order], sent, received), received),
            strict=True,
        )
        return list(of_ranks)

    @property
    def counts(self) -> bool:
        return True

    @property
    def slots(self) -> range:
        return owned_slots(self._rank, self._ranks)

    def saves(self, slots: Tensor) -> Tensor:
        return owners_of(slots, self._ranks) == self._rank

    def _by_owner(self, ids: Tensor) -> tuple[Tensor, list[int]]:
        """The order in which ids are sent, by the rank that has them, and how many each rank gets."""
        owners = owners_of(slots_of(ids), self._ranks)
        return owners.argsort(stable=True), owners.bincount(minlength=self._ranks).tolist()

    def _exchange_sizes(self, sent: list[int]) -> list[int]:
        received = torch.empty(self._ranks, dtype=torch.int64)
        dist.all_to_all_single(received, torch.tensor(sent), group=self._group)
        return received.tolist()

    def _send(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        incoming = rows.new_empty(sum(received), *rows.shape[1:])
        dist.all_to_all_single(incoming, rows.contiguous(), received, sent, group=self._group)
        return incoming


def collect(group: Group, rows: RowsById) -> RowsById:
    """Send rows to the ranks that save their slots; return those of this rank. Rows of the same id are equal."""
    if group is None:
        return rows
    ids, lines = zip(*RowSharded(group).send_to_owners(rows.ids, rows.rows), strict=True)
    return RowsById.of(torch.cat(ids), torch.cat(lines))


def sum_by_id(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Add gradients by id, part after part. The ids of one part are distinct."""
    if len(parts) == 1:
        return parts[0]
    distinct, index = torch.unique(torch.cat([ids for ids, _ in parts]), return_inverse=True)
    total = parts[0][1].new_zeros(distinct.numel(), parts[0][1].shape[1])
    places = torch.split(index, [ids.numel() for ids, _ in parts])
    for of_part, (_, gradients) in zip(places, parts, strict=True):
        total.index_add_(0, of_part, gradients)
    return distinct, total


def _all_gather(group: dist.ProcessGroup, own: Tensor) -> Tensor:
    gathered = own.new_empty(group.size() * own.shape[0], *own.shape[1:])
    dist.all_gather_single(gathered, own, group=group)
    return gathered


def _gather_rows(group: dist.ProcessGroup, own: Tensor, sizes: list[int]) -> list[Tensor]:
    """The rows of all ranks, whose numbers differ: all send as many as the longest."""
    longest = max(sizes)
    padded = torch.cat([own, own.new_zeros(longest - own.shape[0], *own.shape[1:])])
    gathered = _all_gather(group, padded).view(len(sizes), longest, *own.shape[1:])
    return [rows[:size] for rows, size in zip(gathered, sizes, strict=True)]
