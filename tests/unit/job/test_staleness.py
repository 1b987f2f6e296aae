"""How many updates the rows of a step lack."""

from onecurve.job.staleness import Staleness


def test_rows_never_go_back_and_lack_at_most_so_many_updates() -> None:
    staleness = Staleness(2, warmup=3)
    have = [step - 1 - staleness.of(step) for step in range(1, 10)]
    assert have == [0, 1, 2, 3, 3, 3, 4, 5, 6], "updates that the rows of each step have"
    assert [staleness.applies(step) for step in (1, 3, 4)] == [False, False, True]
    assert not Staleness().applies(1)


def test_a_person_is_told_what_it_means() -> None:
    assert Staleness().note == ""
    assert Staleness(1).note.startswith("their rows lack the update of the step before, and the gradient norm")
    assert Staleness(4, 200).note.startswith("after 200 steps of warm-up, their rows lack the updates of the 4 steps")
