"""What works on the rows of a table, compiled by numba: one call for all ids of a request.

Every slot has an index of its own, with open addressing, which grows alone; the rows of a slot are also linked, so that
they can be found without looking at others. All processors compute the same bits: no operation is reordered, fused or
replaced by an estimate.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from onecurve.describe.slots import SLOT_BITS

F = TypeVar("F", bound=Callable[..., Any])

_SLOT_SHIFT = np.uint64(64 - SLOT_BITS)
_MIN_CAPACITY = 8
_GOLDEN_RATIO = np.uint64(0x9E3779B97F4A7C15)
_FACTOR_1, _FACTOR_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def _compiled(function: F) -> F:
    """Compile, once per machine and user. Other threads run meanwhile."""
    settings: dict[str, Any] = {"nogil": True, "fastmath": False, "error_model": "numpy"}
    try:
        compiled: Any = numba.njit(cache=True, **settings)(function)
    except RuntimeError:  # no folder is writable in which the compiled code could be kept
        compiled = numba.njit(**settings)(function)
    return cast(F, compiled)


class Slab(NamedTuple):
    """The memory of a table: rows by their position, and an index for each slot."""

    totals: NDArray[np.int64]
    """The number of lines that have been used, the number of places in all indices, the first free line, plus 1, and
    the number of free lines."""
    ids: NDArray[np.int64]
    values: NDArray[Any]
    """One line per row: its numbers, then its optimizer state."""
    changed_in: NDArray[np.int32]
    """The epoch in which each row has changed last; -1 if the line is free."""
    following: NDArray[np.int32]
    """The next row of the same slot, plus 1; 0 for the last one. Free lines are linked too."""
    places: NDArray[np.int32]
    """The indices of all slots: position of a row, plus 1; 0 if a place is free."""
    begins: NDArray[np.int64]
    """For each slot, its first place in `places`."""
    capacities: NDArray[np.int64]
    """For each slot, the number of its places: a power of two, or 0."""
    counts: NDArray[np.int64]
    """For each slot, the number of its rows."""
    firsts: NDArray[np.int32]
    """For each slot, its newest row, plus 1; 0 if it has none."""


@_compiled
def _hash64(value: Any) -> Any:
    """splitmix64, as in `onecurve.job.initial_rows`."""
    value = value + _GOLDEN_RATIO
    value = (value ^ (value >> np.uint64(30))) * _FACTOR_1
    value = (value ^ (value >> np.uint64(27))) * _FACTOR_2
    return value ^ (value >> np.uint64(31))


@_compiled
def _find(slab: Slab, number: Any, hashed: Any) -> Any:
    """The position of a row; -1 if there is none."""
    slot = hashed >> _SLOT_SHIFT
    capacity = slab.capacities[slot]
    if capacity == 0:
        return -1
    mask, begin = capacity - 1, slab.begins[slot]
    place = np.int64(hashed & np.uint64(mask))
    while True:
        position = np.int64(slab.places[begin + place]) - 1
        if position < 0 or slab.ids[position] == number:
            return position
        place = (place + 1) & mask


@_compiled
def _place(slab: Slab, slot: Any, hashed: Any, position: Any) -> None:
    """Write a row into the first free place of its slot's index."""
    mask, begin = slab.capacities[slot] - 1, slab.begins[slot]
    place = np.int64(hashed & np.uint64(mask))
    while slab.places[begin + place] != 0:
        place = (place + 1) & mask
    slab.places[begin + place] = position + 1


@_compiled
def _grow(slab: Slab, slot: Any) -> None:
    """Give a slot an index of twice the size, at the end of all others."""
    capacity = max(_MIN_CAPACITY, 2 * slab.capacities[slot])
    slab.begins[slot], slab.capacities[slot] = slab.totals[1], capacity
    slab.totals[1] += capacity
    position = np.int64(slab.firsts[slot]) - 1
    while position >= 0:
        _place(slab, slot, _hash64(np.uint64(slab.ids[position])), position)
        position = np.int64(slab.following[position]) - 1


@_compiled
def _fill_first(row: Any, width: Any, key: Any, number: Any) -> None:
    """Write the first value of a row, as `onecurve.job.initial_rows` computes it."""
    of_row = _hash64(np.uint64(number) ^ key)
    scale = math.sqrt(width)
    for column in range(width):
        bits = _hash64(of_row + np.uint64(column + 1) * _GOLDEN_RATIO) >> np.uint64(11)
        row[column] = (np.float64(bits) * 2.0**-52 - 1.0) / scale


@_compiled
def _new_line(slab: Slab) -> Any:
    """The position of a line for a new row: a free one, or the first that was never used."""
    if slab.totals[3] > 0:
        position = slab.totals[2] - 1
        slab.totals[2] = slab.following[position]
        slab.totals[3] -= 1
        return position
    position = slab.totals[0]
    slab.totals[0] += 1
    return position


@_compiled
def _obtain(slab: Slab, width: Any, key: Any, number: Any) -> Any:
    """The position of a row, which is created with its first value if there is none."""
    hashed = _hash64(np.uint64(number))
    position = _find(slab, number, hashed)
    if position >= 0:
        return position
    slot = hashed >> _SLOT_SHIFT
    if 2 * (slab.counts[slot] + 1) > slab.capacities[slot]:
        _grow(slab, slot)
    position = _new_line(slab)
    slab.ids[position] = number
    slab.values[position] = 0
    _fill_first(slab.values[position], width, key, number)
    slab.following[position] = slab.firsts[slot]
    slab.firsts[slot] = position + 1
    slab.counts[slot] += 1
    _place(slab, slot, hashed, position)
    return position


@_compiled
def find_all(slab: Slab, ids: NDArray[np.int64]) -> Any:
    """The positions of rows; -1 where there is none. In a loop of its own, the processor waits for several at once."""
    positions = np.empty(ids.size, np.int64)
    for at in range(ids.size):
        positions[at] = _find(slab, ids[at], _hash64(np.uint64(ids[at])))
    return positions


@_compiled
def _obtain_all(slab: Slab, width: Any, key: Any, ids: NDArray[np.int64]) -> Any:
    """The positions of rows, which are created with their first values where there are none."""
    positions = find_all(slab, ids)
    for at in range(ids.size):
        if positions[at] < 0:
            positions[at] = _obtain(slab, width, key, ids[at])
    return positions


@_compiled
def get(slab: Slab, width: int, key: Any, ids: NDArray[np.int64], rows: NDArray[Any]) -> None:
    """Read rows; one that does not exist has its first value, and is not created."""
    positions, values = find_all(slab, ids), slab.values
    for at in range(ids.size):
        position = positions[at]
        if position >= 0:
            for column in range(width):
                rows[at, column] = values[position, column]
        else:
            _fill_first(rows[at], width, key, ids[at])


@_compiled
def get_values(slab: Slab, width: int, key: Any, ids: NDArray[np.int64], values: NDArray[Any]) -> None:
    """Read rows with their states; one that does not exist has its first value and a state of zeros."""
    positions, stored = find_all(slab, ids), slab.values
    for at in range(ids.size):
        position = positions[at]
        if position >= 0:
            for column in range(stored.shape[1]):
                values[at, column] = stored[position, column]
        else:
            values[at] = 0
            _fill_first(values[at], width, key, ids[at])


@_compiled
def get_epochs(slab: Slab, ids: NDArray[np.int64], epochs: NDArray[np.int32]) -> None:
    """Read in which epochs rows were changed last; 0 for one that does not exist."""
    positions = find_all(slab, ids)
    for at in range(ids.size):
        epochs[at] = slab.changed_in[positions[at]] if positions[at] >= 0 else 0


@_compiled
def positions_in(slab: Slab, begin: int, end: int, positions: NDArray[np.int64]) -> None:
    """Find all rows of the slots from `begin` to `end`."""
    at = 0
    for slot in range(begin, end):
        position = np.int64(slab.firsts[slot]) - 1
        while position >= 0:
            positions[at] = position
            at += 1
            position = np.int64(slab.following[position]) - 1


@_compiled
def drop(slab: Slab, begin: int, end: int) -> None:
    """Forget all rows of the slots from `begin` to `end`; their lines become free."""
    for slot in range(begin, end):
        position = np.int64(slab.firsts[slot]) - 1
        while position >= 0:
            following = np.int64(slab.following[position]) - 1
            slab.changed_in[position] = -1
            slab.following[position] = slab.totals[2]
            slab.totals[2] = position + 1
            slab.totals[3] += 1
            position = following
        slab.places[slab.begins[slot] : slab.begins[slot] + slab.capacities[slot]] = 0
        slab.counts[slot] = slab.firsts[slot] = 0


@_compiled
def put(
    slab: Slab, width: int, key: Any, ids: NDArray[np.int64], values: NDArray[Any], epochs: NDArray[np.int32]
) -> None:
    """Set rows with their states, as changed in these epochs; create those that do not exist."""
    positions, stored = _obtain_all(slab, width, key, ids), slab.values
    for at in range(ids.size):
        position = positions[at]
        for column in range(stored.shape[1]):
            stored[position, column] = values[at, column]
        slab.changed_in[position] = epochs[at]


@_compiled
def update_sgd(
    slab: Slab, width: int, key: Any, ids: NDArray[np.int64], gradients: NDArray[Any], epoch: int, lr: Any
) -> None:
    positions, values = _obtain_all(slab, width, key, ids), slab.values
    for at in range(ids.size):
        position = positions[at]
        slab.changed_in[position] = epoch
        for column in range(width):
            values[position, column] -= lr * gradients[at, column]


@_compiled
def update_rowwise_adagrad(
    slab: Slab, width: int, key: Any, ids: NDArray[np.int64], gradients: NDArray[Any], epoch: int, lr: Any, eps: Any
) -> None:
    """A row's state is the sum of its mean squared gradients."""
    positions, values = _obtain_all(slab, width, key, ids), slab.values
    for at in range(ids.size):
        position = positions[at]
        slab.changed_in[position] = epoch
        squares = lr - lr  # zero, of the same type
        for column in range(width):
            squares += gradients[at, column] * gradients[at, column]
        values[position, width] += squares / width
        rate = lr / (np.sqrt(values[position, width]) + eps)
        for column in range(width):
            values[position, column] -= rate * gradients[at, column]


@_compiled
def update_adam(
    slab: Slab,
    width: int,
    key: Any,
    ids: NDArray[np.int64],
    gradients: NDArray[Any],
    epoch: int,
    lr: Any,
    decays: Any,
    shares: Any,
    eps: Any,
) -> None:
    """A row's state are its two moments, one after the other. `lr`: corrected for the number of updates. `decays`: of
    the moments. `shares`: what a new gradient has in them, 1 minus their decays."""
    positions, values = _obtain_all(slab, width, key, ids), slab.values
    for at in range(ids.size):
        position = positions[at]
        slab.changed_in[position] = epoch
        for column in range(width):
            value = gradients[at, column]
            first = decays[0] * values[position, width + column] + shares[0] * value
            second = decays[1] * values[position, 2 * width + column] + shares[1] * value * value
            values[position, width + column], values[position, 2 * width + column] = first, second
            values[position, column] -= lr * first / (np.sqrt(second) + eps)


@_compiled
def add_squares(gradients: NDArray[Any], places: NDArray[np.int64], totals: NDArray[np.float64]) -> None:
    """Add the squares of each row's gradient to the total at its place, in float64 and in the order of the rows."""
    for at in range(places.size):
        squares = 0.0
        for column in range(gradients.shape[1]):
            value = np.float64(gradients[at, column])
            squares += value * value
        totals[places[at]] += squares
