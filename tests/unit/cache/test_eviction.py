"""What a cache removes: no other choice needs fewer fetches."""

from functools import cache as memoized

from hypothesis import given
from hypothesis import strategies as st

from onecurve.cache.eviction import NEVER, URGENT, Room

ROOM = 3


@given(st.lists(st.sampled_from("abcdef"), max_size=12))
def test_no_choice_needs_fewer_fetches(reads: list[str]) -> None:
    room, fetches = Room(ROOM, {}), 0
    for at, key in enumerate(reads):
        if key in room:
            continue
        fetches += 1
        later = reads[at + 1 :]
        removed = room.make(1, URGENT, lambda each, later=later: later.index(each) if each in later else NEVER, ())
        assert removed is not None
        for each in removed:
            room.remove(each)
        room.add(key, 1)
    assert fetches == fewest_fetches("".join(reads))


def fewest_fetches(reads: str) -> int:
    """By trying everything."""

    @memoized
    def fewest(at: int, held: frozenset[str]) -> int:
        if at == len(reads):
            return 0
        if reads[at] in held:
            return fewest(at + 1, held)
        if len(held) < ROOM:
            return 1 + fewest(at + 1, held | {reads[at]})
        return 1 + min(fewest(at + 1, held - {out} | {reads[at]}) for out in held)

    return fewest(0, frozenset())


def test_files_that_are_needed_before_it_stay() -> None:
    uses = {"a": 5, "b": 20}
    room = Room(10, {"a": 5, "b": 5})
    assert room.make(5, 10, uses.__getitem__, ()) == ["b"]
    assert room.make(5, 30, uses.__getitem__, ()) is None
    assert room.make(8, 10, uses.__getitem__, ()) is None
    assert room.make(8, URGENT, uses.__getitem__, ()) == ["b", "a"]
    assert room.make(5, URGENT, uses.__getitem__, {"b"}) == ["a"]
