"""Runs on an accelerator, which is simulated: see tests/fake_accelerator."""

import os
import sys

import pytest

from harness import TESTS, python


@pytest.mark.timeout(900)
def test_on_a_simulated_accelerator() -> None:
    folders = [str(TESTS / "fake_accelerator"), *filter(None, [os.environ.get("PYTHONPATH")])]
    options = ("-m", "not slow", "-q", "-p", "no:cacheprovider", "--durations=10")
    ended = python(
        "-m", "pytest", *options, str(TESTS / "accelerator"), timeout=880, PYTHONPATH=os.pathsep.join(folders)
    )
    sys.stdout.write(ended.stdout)
    assert ended.returncode == 0, ended.stdout[-8000:] + ended.stderr[-2000:]
    assert " passed" in ended.stdout
