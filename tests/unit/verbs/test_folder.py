from pathlib import Path

import pytest

from onecurve.describe.errors import OnecurveError
from onecurve.verbs.folder import RECORDS, Claim, make_room, refuse_used


def test_two_runs_do_not_share_a_folder(tmp_path: Path) -> None:
    first = Claim(tmp_path / "a")
    with pytest.raises(OnecurveError, match="another run is at work in it"):
        Claim(tmp_path / "a")
    first.release()
    Claim(tmp_path / "a").release()
    refuse_used(tmp_path / "a", fresh=False)  # what a claim leaves is not a stranger's


def test_only_what_a_run_wrote_is_removed(tmp_path: Path) -> None:
    (tmp_path / RECORDS).mkdir()
    (tmp_path / RECORDS / "rank-0.jsonl").touch()
    (tmp_path / "checkpoints" / "step-1").mkdir(parents=True)
    (tmp_path / "notes.txt").touch()
    make_room(tmp_path, fresh=False)
    assert (tmp_path / "checkpoints" / "step-1").exists()
    make_room(tmp_path, fresh=True)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]
