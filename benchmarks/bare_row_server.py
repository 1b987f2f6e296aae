"""A row server without rows, for params.py: it takes and sends the same frames, and stores nothing."""

import sys
from collections.abc import Mapping

import torch
from torch import Tensor

from onecurve.params.served_rows import ServedRows
from onecurve.servers.row_process import main

_sent: dict[tuple[str, int], Tensor] = {}


def get(self: ServedRows, ids: Mapping[str, Tensor]) -> dict[str, Tensor]:
    rows = {}
    for name, wanted in ids.items():
        store = self.stores[name]
        key = name, wanted.numel()
        if key not in _sent:
            _sent[key] = torch.zeros(wanted.numel(), store.table.width, dtype=store.dtype)
        rows[name] = _sent[key]
    return rows


def add(self: ServedRows, step: object) -> None:
    self.applied = step.step  # type: ignore[attr-defined]


ServedRows.get, ServedRows.add = get, add  # type: ignore[method-assign]
ServedRows.squares = lambda self, *_: torch.zeros(len(self.slots), dtype=torch.float64)  # type: ignore[method-assign]

if __name__ == "__main__":
    sys.exit(main())
