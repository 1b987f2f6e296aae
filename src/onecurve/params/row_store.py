"""The rows of one table that this process holds, with their optimizer state, in host memory."""

from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol
from zlib import crc32

import numpy as np
import torch
from torch import Tensor

from onecurve.describe.errors import OnecurveError
from onecurve.describe.seed import mix
from onecurve.describe.slots import SLOTS
from onecurve.device.reserved_memory import free_address_space, reserve
from onecurve.device.spill_file import SpillFile
from onecurve.job.row_limits import RowLimits
from onecurve.job.row_optimizer import SGD, Adam, RowOptimizer, RowwiseAdagrad, TorchOptimizer
from onecurve.params.slots import slots_of
from onecurve.params.torch_rows import updated

if TYPE_CHECKING:
    from onecurve.params.row_kernels import Slab

_RESERVED_BYTES = 1 << 40
"""Address space that the rows of a table may fill. Memory is taken as rows are created."""
_MAX_ROWS = (1 << 31) - 2
"""Positions have 32 bits."""
_PLACES_PER_ROW = 8
"""Places in the indices of slots, each at most half full, and in those that they have grown out of."""


@dataclass(frozen=True)
class Spill:
    """Where a table's rows are that do not fit in memory."""

    folder: str
    memory: int
    """Bytes of rows with their states that are in memory: those that were created first."""

    def new_file(self) -> SpillFile:
        try:
            return SpillFile(Path(self.folder), self.memory)
        except OSError as error:
            raise OnecurveError(f"{self.folder}: no rows can be stored there ({error.strerror})") from None


class StoredTable(Protocol):
    """What a store knows of its table: a module has it, and what a server was told."""

    @property
    def table(self) -> str: ...
    @property
    def width(self) -> int: ...
    @property
    def optimizer(self) -> RowOptimizer: ...
    @property
    def limits(self) -> RowLimits: ...


def state_width(table: StoredTable) -> int:
    """Numbers that a table stores with each row."""
    return table.optimizer.state_width(table.width) + table.limits.columns


class RowStore:
    """Rows by id. Only `update` and `put` change or create them."""

    def __init__(
        self, table: StoredTable, seed: int, dtype: torch.dtype, share: float = 1.0, spill: Spill | None = None
    ) -> None:
        """`share`: of the address space that tables may have, if it is limited. `spill`: where rows are that do not fit
        in memory."""
        self.table, self.dtype, self._share, self._spill = table, dtype, share, spill
        self._file: SpillFile | None = None
        self._kernels = _load_kernels()
        self._key = np.uint64(mix(seed, crc32(table.table.encode())))
        self._number = np.dtype(np.float64 if dtype == torch.float64 else np.float32)
        self._states = state_width(table)
        self._slab, self._limit = self._reserve()
        self.epoch = 1
        """Number of the current epoch; rows that change are marked with it. See `changed_since`."""
        self.updates = 0
        """Updates so far of the rows that are asked for: rows may be evicted by their age."""

    def __len__(self) -> int:
        return self._rows

    def clear(self) -> None:
        """Forget all rows."""
        del self._slab  # first, because there may be no room for both
        self._slab, self._limit = self._reserve()
        self.epoch = 1

    @property
    def widths(self) -> tuple[torch.Size, torch.Size]:
        """The shapes of one row and of its state."""
        return torch.Size([self.table.width]), torch.Size([self._states])

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its state and its id."""
        return int(self._slab.values.itemsize * self._slab.values.shape[1] + 8)

    def ids_at(self, positions: Tensor) -> Tensor:
        """Return the ids of the rows at these positions."""
        return torch.from_numpy(self._slab.ids[positions.numpy()])

    def has(self, ids: Tensor) -> Tensor:
        """True for each id that has a row."""
        return torch.from_numpy(self._kernels.find_all(self._slab, ids.contiguous().numpy()) >= 0)

    def get(self, ids: Tensor) -> Tensor:
        """Return the rows of these ids; one that does not exist has its first value, and is not created."""
        self._read_ahead(ids)
        rows = np.empty((ids.numel(), self.table.width), self._number)
        self._kernels.get(self._slab, self.table.width, self._key, ids.contiguous().numpy(), rows)
        return torch.from_numpy(rows)

    def update(self, ids: Tensor, gradients: Tensor, lr: float, updates: int) -> None:
        """Update the rows of these ids, which are distinct; create those that do not exist.

        `updates`: updates of the table so far, including this one.
        """
        kernels, optimizer, number = self._kernels, self.table.optimizer, self._number.type
        if isinstance(optimizer, TorchOptimizer):
            values = updated(optimizer, self.values(ids), self.table.width, gradients.to(self.dtype), lr)
            self.put_values(ids, values)
            return
        self._make_room(ids)
        arrays = (
            self._slab,
            self.table.width,
            self._key,
            ids.contiguous().numpy(),
            _numpy(gradients, self.dtype),
            self.epoch,
        )
        if isinstance(optimizer, SGD):
            kernels.update_sgd(*arrays, number(lr))
        elif isinstance(optimizer, RowwiseAdagrad):
            kernels.update_rowwise_adagrad(*arrays, number(lr), number(optimizer.eps))
        else:
            assert isinstance(optimizer, Adam)
            beta1, beta2 = optimizer.betas
            corrected = lr * (1 - beta2**updates) ** 0.5 / (1 - beta1**updates)
            decays, shares = (number(beta1), number(beta2)), (number(1 - beta1), number(1 - beta2))
            kernels.update_adam(*arrays, number(corrected), decays, shares, number(optimizer.eps))

    def changed_since(self, epoch: int) -> Tensor:
        """Return the positions of the rows that have changed in this epoch or later; all of them for epoch 0."""
        return torch.from_numpy(np.flatnonzero(self._slab.changed_in[: self._lines] >= epoch))

    def changed_in(self, positions: Tensor) -> Tensor:
        """Return the epochs in which the rows at these positions were changed last."""
        return torch.from_numpy(self._slab.changed_in[positions.numpy()])

    def contents(self, order: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return copies of the ids, rows and states at these positions."""
        positions = order.numpy()
        values = torch.from_numpy(self._slab.values[positions])
        rows, states = values.split([self.table.width, self._states], dim=1)  # type: ignore[no-untyped-call]
        return torch.from_numpy(self._slab.ids[positions]), rows.contiguous(), states.contiguous()

    def values(self, ids: Tensor) -> Tensor:
        """Return the rows of these ids with their states; one that does not exist has its first value, and zeros."""
        self._read_ahead(ids)
        values = np.empty((ids.numel(), self._slab.values.shape[1]), self._number)
        self._kernels.get_values(self._slab, self.table.width, self._key, ids.contiguous().numpy(), values)
        return torch.from_numpy(values)

    def epochs(self, ids: Tensor) -> Tensor:
        """Return in which epochs the rows of these ids were changed last; 0 for one that does not exist."""
        epochs = np.empty(ids.numel(), np.int32)
        self._kernels.get_epochs(self._slab, ids.contiguous().numpy(), epochs)
        return torch.from_numpy(epochs)

    def put_values(self, ids: Tensor, values: Tensor, epochs: Tensor | None = None) -> None:
        """Set rows and their states, as `values` returns them; ids are distinct. `epochs`: in which each was changed;
        None for the current one."""
        if epochs is None:
            epochs = torch.full((ids.numel(),), self.epoch)
        self._put(ids, values.to(self.dtype), epochs)

    def in_slots(self, slots: range) -> Tensor:
        """Return the positions of all rows in these slots, which are consecutive."""
        positions = np.empty(self._slab.counts[slots.start : slots.stop].sum(), np.int64)
        self._kernels.positions_in(self._slab, slots.start, slots.stop, positions)
        return torch.from_numpy(positions)

    def drop(self, slots: range) -> None:
        """Forget all rows in these slots, which are consecutive."""
        self._kernels.drop(self._slab, slots.start, slots.stop)

    def free(self, slot: int, updates: int) -> None:
        """Free the memory of rows that do not count any longer; without limits there are none."""

    @property
    def _lines(self) -> int:
        """Lines that have been used."""
        return int(self._slab.totals[0])

    @property
    def _rows(self) -> int:
        """Lines that hold a row."""
        return int(self._slab.totals[0] - self._slab.totals[3])

    def put(self, ids: Tensor, rows: Tensor, states: Tensor, epoch: int) -> None:
        """Set rows and their states, as changed in an epoch; ids are distinct."""
        values = torch.cat([rows.to(self.dtype), states.to(self.dtype)], dim=1)
        self._put(ids, values, torch.full((ids.numel(),), epoch))

    def _put(self, ids: Tensor, values: Tensor, epochs: Tensor) -> None:
        self._make_room(ids)
        arrays = ids.contiguous().numpy(), values.contiguous().numpy(), _numpy(epochs, torch.int32)
        self._kernels.put(self._slab, self.table.width, self._key, *arrays)

    def _reserve(self) -> "tuple[Slab, int]":
        """The memory of the table, and the number of rows that it has room for."""
        columns = self.table.width + self._states
        row_bytes = columns * self._number.itemsize + 16 + 4 * _PLACES_PER_ROW
        try:
            return self._slab_of(min(_MAX_ROWS, _RESERVED_BYTES // row_bytes), columns)
        except OSError:  # the address space is limited; others need some of it too
            limit = min(_MAX_ROWS, int(self._share * free_address_space() / 2) // row_bytes)
        try:
            return self._slab_of(limit, columns)
        except OSError as error:
            raise OnecurveError(
                f"table {self.table.table!r}: no address space can be reserved for its rows ({error.strerror}); raise "
                "`ulimit -v`, or set vm.overcommit_memory to 0 or 1"
            ) from None

    def _slab_of(self, limit: int, columns: int) -> "tuple[Slab, int]":
        values, self._file = (limit, columns), None
        if self._spill is not None:
            self._file = self._spill.new_file()
        slab: Slab = self._kernels.Slab(
            totals=np.zeros(4, np.int64),
            ids=reserve((limit,), np.int64),
            values=self._file.reserve(values, self._number) if self._file else reserve(values, self._number),
            changed_in=reserve((limit,), np.int32),
            following=reserve((limit,), np.int32),
            places=reserve((_PLACES_PER_ROW * limit + 8 * SLOTS,), np.int32),
            begins=np.zeros(SLOTS, np.int64),
            capacities=np.zeros(SLOTS, np.int64),
            counts=np.zeros(SLOTS, np.int64),
            firsts=np.zeros(SLOTS, np.int32),
        )
        return slab, limit

    def _read_ahead(self, ids: Tensor) -> None:
        """Have rows that are in the file read at once, not one after the other."""
        if self._file is not None and self._lines * self._line_bytes > self._file.memory:
            positions = self._kernels.find_all(self._slab, ids.contiguous().numpy())
            self._file.read_ahead(positions[positions >= 0] * self._line_bytes, self._line_bytes)

    @property
    def _line_bytes(self) -> int:
        return int(self._slab.values.strides[0])

    def _make_room(self, ids: Tensor) -> None:
        """Prepare that rows are written."""
        more = ids.numel()
        if self._file is not None:
            try:
                self._file.allocate((self._lines + more) * self._line_bytes)
            except OSError as error:
                raise OnecurveError(
                    f"table {self.table.table!r}: no space for more rows in the folder of --spill ({error.strerror})"
                ) from None
            self._read_ahead(ids)
        if self._rows + more > self._limit:
            raise OnecurveError(
                f"table {self.table.table!r}: there is address space for {self._limit:,} rows in one process; use "
                "more row servers, or more ranks with tables=row_sharded, or raise `ulimit -v`"
            )


def squares_by_slot(ids: Tensor, gradients: Tensor, slots: range) -> Tensor:
    """Return the squares of gradients, one number per slot, in float64."""
    totals = np.zeros(len(slots), np.float64)
    places = slots_of(ids) - slots.start
    _load_kernels().add_squares(gradients.contiguous().numpy(), places.numpy(), totals)
    return torch.from_numpy(totals)


def _load_kernels() -> ModuleType:
    """Import them only for jobs that have tables: numba takes half a second."""
    try:
        from onecurve.params import row_kernels
    except ImportError as error:
        raise OnecurveError(
            f"embedding tables need numba ({error}); install it with `pip install 'onecurve[params]'`"
        ) from None
    return row_kernels


def _numpy(values: Tensor, dtype: torch.dtype) -> Any:
    return values.to(dtype).contiguous().numpy()
