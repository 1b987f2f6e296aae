"""Where a thread is."""

import re
import sys
import threading
import time

from onecurve.launch.position import line_number, line_of


def wait_here(entered: threading.Event, leave: threading.Event) -> None:
    entered.set()
    while not leave.is_set():
        time.sleep(0.01)


def test_the_line_of_a_thread_and_its_function_are_named() -> None:
    entered, leave = threading.Event(), threading.Event()
    thread = threading.Thread(target=wait_here, args=(entered, leave))
    thread.start()
    entered.wait()
    assert thread.ident is not None
    deadline = time.monotonic() + 10
    while not re.fullmatch(r"test_position\.py:\d+ in wait_here", line_of(thread.ident)):  # not in Event.set any more
        assert time.monotonic() < deadline
    leave.set()
    thread.join()
    assert line_of(-1) == ""


def test_a_frame_between_two_lines_is_at_the_first_line_of_its_function() -> None:
    def frame():
        return sys._getframe()

    frame.__code__ = frame.__code__.replace(co_linetable=b"")  # as Python has no line while a function is entered
    assert frame().f_lineno is None
    assert line_number(frame()) == frame.__code__.co_firstlineno
