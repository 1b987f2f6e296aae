"""The view follows its servers: whatever comes and goes, every slot is held, and each server gets its share."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from onecurve.describe.slots import SLOTS
from onecurve.params.view import ServerAddress, View
from onecurve.params.view_changes import (
    first_view,
    lost_slots,
    next_move,
    slots_by_server,
    taking_part,
    with_server,
    without,
)


def servers(count: int) -> dict[str, ServerAddress]:
    return {f"s{number}": ServerAddress(f"h{number}:1", f"h{number}") for number in range(count)}


def settled(view: View) -> View:
    """All joins have ended."""
    for _ in range(2_000):
        joining = [(begin, piece.joining) for begin, piece in view.pieces.items() if piece.joining]
        following = taking_part(view, *joining[0]) if joining else next_move(view, 2)
        if following is None:
            return view
        assert following.epoch == view.epoch + 1
        check(following)
        view = following
    raise AssertionError("the view does not settle")


def check(view: View) -> None:
    """Every slot is in one piece, and no server has two copies of a piece."""
    end = 0
    for begin, piece in view.pieces.items():
        assert begin == end < piece.end
        end = piece.end
        assert len(set(piece.servers)) == len(piece.servers)
    assert end == SLOTS


def check_shares(view: View) -> None:
    for held in (slots_by_server(view, "primary"), slots_by_server(view, "backup")):
        share = SLOTS / len(view.servers)
        assert all(abs(count - share) <= 0.05 * share for count in held.values()), held


@settings(deadline=None, max_examples=40)
@given(
    st.integers(2, 6), st.lists(st.tuples(st.sampled_from(["comes", "dies", "leaves"]), st.integers(0, 20)), max_size=6)
)
def test_servers_come_and_go(count: int, changes: list[tuple[str, int]]) -> None:
    view = first_view(servers(count), 2)
    check(view)
    for number, (kind, choice) in enumerate(changes):
        chosen = list(view.servers)[choice % len(view.servers)]
        if kind == "comes":
            changed = with_server(view, f"new{number}", ServerAddress("", f"n{number}"))
        elif len(view.servers) <= 2:
            continue
        else:
            if kind == "leaves":
                view = left(view, chosen)
            assert not lost_slots(view, chosen)
            changed = without(view, chosen)
        assert changed is not None
        check(changed)
        view = settled(changed)
        check_shares(view)
        assert all(piece.backup for piece in view.pieces.values())
        assert len(view.pieces) <= 40 * len(view.servers)


def left(view: View, name: str) -> View:
    """A server has handed over all of its rows; each piece has two copies all the time, if there are other servers."""
    leaving = with_server(view, name, replace(view.servers[name], is_leaving=True))
    assert leaving is not None
    view = settled(leaving)
    assert not any(name in piece.servers for piece in view.pieces.values())
    return view


def test_the_last_but_one_server_leaves_the_other_alone() -> None:
    view = left(first_view(servers(2), 2), "s0")
    assert {(piece.primary, piece.backup) for piece in view.pieces.values()} == {("s1", "")}


def test_rows_begin_on_servers_that_stay() -> None:
    places = servers(3)
    view = first_view({**places, "s1": replace(places["s1"], is_leaving=True)}, 2)
    assert not any("s1" in piece.servers for piece in view.pieces.values())


def test_there_is_one_copy_if_there_is_one_machine() -> None:
    view = first_view({name: ServerAddress("", "h") for name in "ab"}, 2)
    assert not any(piece.backup for piece in settled(view).pieces.values())


def test_a_third_server_gets_a_third() -> None:
    view = with_server(first_view(servers(2), 2), "new", ServerAddress("", "n"))
    assert view is not None
    view = settled(view)
    for held in (slots_by_server(view, "primary"), slots_by_server(view, "backup")):
        assert all(abs(count / SLOTS - 1 / 3) < 0.0167 for count in held.values())


def test_copies_are_on_different_machines() -> None:
    places = {name: ServerAddress("", "h0" if number < 2 else f"h{number}") for number, name in enumerate("abcd")}
    view = first_view(places, 2)
    assert all(places[piece.primary].machine != places[piece.backup].machine for piece in view.pieces.values())


def test_slots_of_which_nobody_has_the_rows_are_named() -> None:
    view = first_view(servers(2), 1)
    assert lost_slots(view, "s1") == [range(2_048, 4_096)]
    assert lost_slots(first_view(servers(2), 2), "s1") == []
