"""A rank that waits forever ends, and says where it waits."""

import json

from harness import python
from onecurve.launch.failure_report import RankStalledError, report_of

SCRIPT = """
import threading, time
from onecurve.launch.stall_watch import StallWatch
with StallWatch("plan mb8", 1.0) as watch:
    for _ in range(4):
        time.sleep(0.5)
        watch.progress()
    print("still there", flush=True)
    threading.Event().wait()
"""


def test_a_rank_without_progress_ends_with_its_position(tmp_path) -> None:
    file = tmp_path / "error"
    ended = python("-c", SCRIPT, TORCHELASTIC_ERROR_FILE=str(file))
    assert ended.returncode == 1
    assert ended.stdout == "still there\n"
    failure = json.loads(file.read_text())
    text = failure["message"]["message"]
    assert "plan mb8: no progress for 1 s; the rank waits in wait (threading.py:" in text
    # An error in the user's input would be a refusal of the plan.
    assert not report_of(RankStalledError("plan mb8: no progress"))["is_input_error"]


def test_a_rank_that_leaves_in_time_goes_on() -> None:
    code = "import time\nfrom onecurve.launch.stall_watch import StallWatch\nwith StallWatch('x', 0.5):\n    pass\n"
    assert python("-c", code + "time.sleep(1.5)").returncode == 0
