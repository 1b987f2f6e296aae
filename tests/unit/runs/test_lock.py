"""Two runs cannot use one folder at the same time, and a lock ends with the run that took it."""

import os
import signal
import time
from pathlib import Path

import pytest

from onecurve.describe.errors import OnecurveError
from onecurve.runs.folder import refuse_foreign_folder
from onecurve.runs.lock import LOCK, RunLock, is_locked


def test_two_runs_cannot_share_a_folder(tmp_path: Path) -> None:
    first = RunLock(tmp_path / "a")
    with pytest.raises(OnecurveError, match="another run is using it"):
        RunLock(tmp_path / "a")
    first.release()
    RunLock(tmp_path / "a").release()


def test_a_folder_that_holds_only_a_lock_is_not_foreign(tmp_path: Path) -> None:
    RunLock(tmp_path).release()
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]
    refuse_foreign_folder(tmp_path)


def test_if_one_of_two_folders_is_in_use_the_other_is_not_left_locked(tmp_path: Path) -> None:
    in_use = RunLock(tmp_path / "checkpoints")
    with pytest.raises(OnecurveError, match="checkpoints: another run is using it"):
        RunLock(tmp_path / "run", tmp_path / "checkpoints")
    RunLock(tmp_path / "run").release()
    in_use.release()


def test_a_folder_that_cannot_be_created_is_refused_with_the_fix(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OnecurveError, match=r"cannot be written .*; give another --out"):
        RunLock(tmp_path / "file" / "run")


def test_a_symbolic_link_is_not_followed(tmp_path: Path) -> None:
    """Whoever can write into the folder must not make a run create a file elsewhere."""
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    run.mkdir()
    (run / LOCK).symlink_to(elsewhere)
    with pytest.raises(OnecurveError, match="cannot be written"):
        RunLock(run)
    assert not elsewhere.exists()


def test_release_can_be_called_twice(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    lock.release()
    lock.release()


def test_a_released_lock_is_free_even_if_a_loader_process_is_still_alive(tmp_path: Path) -> None:
    lock = RunLock(tmp_path)
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    try:
        lock.release()
        RunLock(tmp_path).release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_lock_can_be_looked_at(tmp_path: Path) -> None:
    assert is_locked(tmp_path) is None
    lock = RunLock(tmp_path)
    assert is_locked(tmp_path)
    lock.release()
    assert is_locked(tmp_path) is False
    RunLock(tmp_path).release()
