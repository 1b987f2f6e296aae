"""Tickets under any order of workers that ask, push, finish and are lost."""

from hypothesis import given
from hypothesis import strategies as st

from onecurve.job.row_point import StepVerdict
from onecurve.params.tickets import Tickets

LAST, WORKERS, OPEN = 12, 4, 16


@given(st.data(), st.integers(0, 5), st.sets(st.integers(1, LAST)))
def test_each_ticket_counts_once_whoever_is_lost(data: st.DataObject, first: int, pauses: set[int]) -> None:
    tickets = Tickets(first, LAST, row_step=3, pauses_after=lambda ticket: ticket in pauses)
    holding: dict[int, int] = {}
    pushing: dict[int, int] = {}
    counted: list[int] = []
    decided = set(range(4))
    told: set[int] = set(decided)
    for _ in range(400):
        worker = data.draw(st.integers(0, WORKERS - 1))
        act = data.draw(st.sampled_from(["go on", "go on", "go on", "lose", "pause"]))
        if act == "pause" and not tickets.is_paused:
            tickets.pause()
        elif act == "lose":
            if worker in holding:
                if worker in pushing:
                    decided.add(pushing[worker])
                    tickets.skip(pushing.pop(worker))
                tickets.return_ticket(holding.pop(worker))
        elif worker not in holding:
            if (ticket := tickets.hand_out()) is not None:
                holding[worker] = ticket
        elif worker not in pushing:
            if (step := tickets.number_step()) is not None:
                pushing[worker] = step
                told |= set(tickets.verdicts)
                assert set(range(4, step - OPEN + 1)) <= told, "a push must carry the verdicts that servers need"
        else:
            decided.add(pushing[worker])
            tickets.count((pushing.pop(worker), StepVerdict()))
            counted.append(holding.pop(worker))
        assert all(step in decided for step in range(4, tickets.known + 1))
        if tickets.is_paused:
            assert not holding
            assert sorted(counted) == list(range(first + 1, tickets.counted + 1)), "a pause is after the same tickets"
            tickets.go_on()
        if tickets.is_over:
            break
    assert len(counted) == len(set(counted)) == tickets.counted - first


def test_a_ticket_of_a_lost_worker_comes_first() -> None:
    tickets = Tickets(0, 10, row_step=0)
    assert [tickets.hand_out() for _ in range(3)] == [1, 2, 3]
    tickets.return_ticket(2)
    assert [tickets.hand_out() for _ in range(2)] == [2, 4]


def test_no_ticket_is_handed_out_after_a_pause_until_all_count() -> None:
    tickets = Tickets(0, 10, row_step=0, pauses_after=lambda ticket: ticket == 2)
    assert [tickets.hand_out() for _ in range(3)] == [1, 2, None]
    for _ in range(2):
        tickets.count(None)
    assert tickets.is_paused
    tickets.go_on()
    assert tickets.hand_out() == 3


def test_too_many_row_steps_wait_for_the_oldest() -> None:
    tickets = Tickets(0, 100, row_step=0)
    steps = [tickets.number_step() for _ in range(OPEN + 1)]
    assert steps == [*range(1, OPEN + 1), None]
    tickets.skip(5)
    assert tickets.number_step() is None
    tickets.skip(1)
    assert tickets.number_step() == OPEN + 1
    assert tickets.known == 1
