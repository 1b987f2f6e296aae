"""Every slot has one owner, and every owner about as many slots."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.slots import SLOTS, owned_slots, owner_of_slot
from onecurve.params.slots import owners_of, slots_of


@given(st.integers(1, 5_000))
def test_slots_are_divided(owners: int) -> None:
    owned = [owned_slots(owner, owners) for owner in range(owners)]
    assert [slot for slots in owned for slot in slots] == list(range(SLOTS))
    assert max(map(len, owned)) - min(map(len, owned)) <= 1
    of_slots = owners_of(torch.arange(SLOTS), owners).tolist()
    assert of_slots == [owner_of_slot(slot, owners) for slot in range(SLOTS)]
    assert all(slot in owned[owner] for slot, owner in enumerate(of_slots))


def test_consecutive_ids_are_spread() -> None:
    counts = slots_of(torch.arange(409_600)).bincount(minlength=SLOTS)
    assert int(counts.min()) > 50
    assert int(counts.max()) < 160
