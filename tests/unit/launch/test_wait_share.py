"""The share of its time that a rank waits."""

from onecurve.launch.wait_share import WaitShare


def test_samples_at_the_last_collective_of_the_rounds_are_waits() -> None:
    share = WaitShare()
    for _ in range(5):
        share.add(10, False)
    for _ in range(15):
        share.add(12, False)
    assert share.at_end_of_rounds(12) == 0.75


def test_samples_inside_a_collective_are_waits_and_too_few_say_nothing() -> None:
    share = WaitShare()
    for number in range(9):
        share.add(number, True)
    assert share.at_end_of_rounds(100) is None
    share.add(9, False)
    assert share.at_end_of_rounds(100) == 0.9


def test_old_samples_are_forgotten() -> None:
    share = WaitShare()
    for number in range(1000):
        share.add(number, number < 500)
    assert share.at_end_of_rounds(2000) == 0.0
