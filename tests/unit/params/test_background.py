"""Work that a thread does in order."""

import threading
import time

import pytest

from onecurve.params.background import Background


class ToldError(Exception):
    pass


def test_work_is_done_in_order_and_a_failure_ends_what_comes_after_it() -> None:
    background, done = Background(lambda: None), list[int]()

    def fail() -> None:
        raise ValueError("no such row")

    background.begin(lambda: time.sleep(0.05))
    for number in range(3):
        background.begin(lambda number=number: done.append(number))
    background.settle()
    assert done == [0, 1, 2]
    assert background.is_idle
    background.begin(fail)
    later = background.begin(lambda: done.append(3))
    for wait in (lambda: background.wait(later), background.settle):
        with pytest.raises(ValueError, match="no such row"):
            wait()
    assert done == [0, 1, 2], "what comes after a failure is not done"
    background.close()


def test_whoever_waits_is_told_and_work_that_waits_ends_with_the_background() -> None:
    def check() -> None:
        raise ToldError

    background, begun = Background(check), threading.Event()

    def work() -> None:
        while True:
            begun.set()
            time.sleep(0.001)
            background.check()

    future = background.begin(work)
    begun.wait()
    with pytest.raises(ToldError):
        background.wait(future)
    background.close()
    assert future.done()
