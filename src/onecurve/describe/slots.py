"""Slots: the pieces into which the ids of an embedding table are divided by their hash.

Ranks and servers own consecutive slots, each about as many as the others.
"""

SLOT_BITS = 12
SLOTS = 1 << SLOT_BITS


def owner_of_slot(slot: int, owners: int) -> int:
    """Return which of the owners has a slot."""
    return slot * owners >> SLOT_BITS


def owned_slots(owner: int, owners: int) -> range:
    """Return the slots of an owner."""
    begin, end = (-(-(each << SLOT_BITS) // owners) for each in (owner, owner + 1))
    return range(begin, end)
