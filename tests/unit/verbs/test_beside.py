import os
import subprocess
import sys
import threading

import pytest

from onecurve.verbs.beside import beside


def test_a_copy_does_the_work_and_its_outcome_comes_back() -> None:
    code = "import os; from onecurve.verbs.beside import beside; print(beside(os.getpid)() not in (0, os.getpid()))"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True, timeout=60)
    assert done.stdout.strip() == "True"


def test_a_process_with_threads_is_not_copied() -> None:
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()
    try:
        assert beside(os.getpid)() == os.getpid()
    finally:
        done.set()
        other.join()


def test_what_fails_in_the_copy_fails_here() -> None:
    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        beside(fail)()
