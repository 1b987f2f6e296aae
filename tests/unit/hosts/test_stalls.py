"""Which rank the others wait for, and when it is named and given up."""

import pytest

from onecurve.describe.host import HostStall, RankPosition
from onecurve.hosts.stalls import HungRanks, waited_for


def position(rank: int, common: int = 0, waits: bool = False, longest_step: float = 0.1) -> RankPosition:
    return RankPosition(
        rank=rank,
        collectives=common,
        common=common,
        waits=waits,
        line="train.py:3 in forward",
        longest_step=longest_step,
    )


@pytest.mark.parametrize(
    ("positions", "expected"),
    [
        pytest.param([position(0, waits=True), position(1), position(2, waits=True)], [1], id="the others wait"),
        pytest.param([position(0, 26), position(1, 24), position(2, 26)], [1], id="the others are ahead"),
        pytest.param([position(0, 26, waits=True), position(1, 24), position(2, 25)], [1], id="both"),
        pytest.param([position(0, 26), position(1, 26), position(2, 26)], [], id="all compute"),
        pytest.param([position(0, waits=True), position(1, waits=True)], [], id="all wait for each other"),
        pytest.param([position(0), position(1), position(2, waits=True)], [0, 1], id="two are waited for"),
        pytest.param([position(0)], [], id="one rank"),
    ],
)
def test_who_is_waited_for(positions: list[RankPosition], expected: list[int]) -> None:
    assert [each.rank for each in waited_for(positions)] == expected


def test_a_hung_rank_is_named_once_and_given_up_after_a_minute_or_twenty_steps() -> None:
    now = [0.0]
    for longest_step, limit in ((0.1, 60.0), (10.0, 200.0)):
        hung = HungRanks(lambda: now[0])
        stalls = {
            "h0": HostStall(1, (position(0, 5, longest_step=longest_step),)),
            "h1": HostStall(1, (position(1, 4, longest_step=longest_step),)),
        }
        now[0] = 0.0
        assert hung.look(stalls) == []
        now[0] = 1.5
        (found,) = hung.look(stalls)
        assert (found.host, found.position.rank, found.is_new, found.is_given_up) == ("h1", 1, True, False)
        now[0] = limit - 1
        (found,) = hung.look(stalls)
        assert (found.is_new, found.is_given_up) == (False, False)
        now[0] = limit + 1
        assert hung.look(stalls)[0].is_given_up


def test_progress_starts_the_count_again() -> None:
    now = [0.0]
    hung = HungRanks(lambda: now[0])
    waits = HostStall(1, (position(0, waits=True),))
    for number in range(10):
        now[0] += 30.0
        assert hung.look({"h0": waits, "h1": HostStall(1, (position(1, number),))}) == []
    assert hung.look({}) == []
