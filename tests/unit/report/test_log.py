"""--verbose shows the log records of onecurve, and of nothing else."""

import logging
from collections.abc import Iterator

import pytest

from onecurve.report.log import is_verbose, log_to_stderr


@pytest.fixture(autouse=True)
def restored_logger() -> Iterator[None]:
    logger = logging.getLogger("onecurve")
    before = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], level, logger.propagate = before
    logger.setLevel(level)


def test_records_of_the_package_are_shown_with_their_logger(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr()
    logging.getLogger("onecurve.planner.clusters").info("cached for %d cores", 4)
    logging.getLogger("onecurve.measure").debug("too detailed")
    shown = capsys.readouterr()
    assert shown.err == "onecurve.planner.clusters: cached for 4 cores\n"
    assert shown.out == ""


def test_the_root_logger_and_other_libraries_are_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    before = root.handlers[:], root.level
    log_to_stderr()
    logging.getLogger("another.library").info("not shown")
    assert (root.handlers, root.level) == before
    assert capsys.readouterr().err == ""


def test_a_record_is_shown_once_even_if_the_root_logger_has_a_handler(capsys: pytest.CaptureFixture[str]) -> None:
    handler = logging.StreamHandler()
    logging.getLogger().addHandler(handler)
    try:
        log_to_stderr()
        logging.getLogger("onecurve.launch").warning("once")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err.count("once") == 1


def test_is_verbose_tells_a_launcher_what_to_pass_on() -> None:
    assert not is_verbose()
    log_to_stderr()
    assert is_verbose()
