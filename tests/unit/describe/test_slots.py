"""Each slot of an embedding table has one owner, and owners have consecutive slots, about as many as each other."""

import pytest

from onecurve.describe.slots import SLOTS, owned_slots, owner_of_slot


@pytest.mark.parametrize("owners", [1, 2, 3, 7, 64, 1000])
def test_owners_divide_all_slots(owners: int) -> None:
    parts = [owned_slots(owner, owners) for owner in range(owners)]
    assert [slot for part in parts for slot in part] == list(range(SLOTS))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert all(owner_of_slot(slot, owners) == owner for owner, part in enumerate(parts) for slot in (part[0], part[-1]))
