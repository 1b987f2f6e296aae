"""A rank that waits in a collective is told apart from the one that it waits for."""

import json
from pathlib import Path

from harness import JOBS, torchrun
from onecurve.device.waiting import _WAITING_FILES


def test_a_waiting_rank_is_ahead_and_seen_to_wait(tmp_path: Path) -> None:
    done = torchrun(2, str(JOBS / "waiting_rank.py"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = {line["rank"]: line["seen"] for line in map(json.loads, done.stdout.splitlines())}
    assert found[0].keys() == found[1].keys() == {"all_reduce", "functional", "fully_shard"}
    for way, (collectives, waits) in found[0].items():
        late_collectives, late_waits = found[1][way]
        assert waits, way
        assert not late_waits, way
        assert collectives == late_collectives + 1, way


def test_the_files_in_which_torch_waits_exist() -> None:
    assert [file for file in _WAITING_FILES if not Path(file).is_file()] == []
