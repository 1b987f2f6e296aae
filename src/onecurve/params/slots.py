"""The slots of ids."""

from torch import Tensor

from onecurve.describe.slots import SLOT_BITS, SLOTS
from onecurve.job.initial_rows import hash64


def slots_of(ids: Tensor) -> Tensor:
    """Return the slot of each id, from 0 to 4,095."""
    return (hash64(ids) >> (64 - SLOT_BITS)) & (SLOTS - 1)


def owners_of(slots: Tensor, owners: int) -> Tensor:
    """Return which of the owners has each slot; see `onecurve.describe.slots`."""
    return slots * owners >> SLOT_BITS
