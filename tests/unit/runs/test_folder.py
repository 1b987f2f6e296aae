import os
import signal
import time
from pathlib import Path

import pytest

from onecurve.describe.errors import OnecurveError
from onecurve.runs.folder import RECORDS, WEIGHTS, clear_previous_run, refuse_foreign_folder
from onecurve.runs.lock import RunLock


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    first = RunLock(tmp_path / "a")
    with pytest.raises(OnecurveError, match="another run is using it"):
        RunLock(tmp_path / "a")
    first.release()
    RunLock(tmp_path / "a").release()
    refuse_foreign_folder(tmp_path / "a")  # what a claim leaves is not a stranger's


def test_only_what_a_run_wrote_is_removed(tmp_path: Path) -> None:
    (tmp_path / RECORDS).mkdir()
    (tmp_path / RECORDS / "rank-0.jsonl").touch()
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    refuse_foreign_folder(tmp_path)
    clear_previous_run(tmp_path, fresh=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoints", "notes.txt"]
    (tmp_path / WEIGHTS).touch()
    with pytest.raises(OnecurveError, match="already holds a run"):
        clear_previous_run(tmp_path, fresh=False)
    clear_previous_run(tmp_path, fresh=True)
    assert not (tmp_path / WEIGHTS).exists()


def test_a_strangers_folder_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    (tmp_path / RECORDS).mkdir()  # a name that others use as well
    with pytest.raises(OnecurveError, match="not a run's folder"):
        refuse_foreign_folder(tmp_path)


def test_a_claim_ends_though_loader_processes_live_on(tmp_path: Path) -> None:
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
