"""A script is a program with its own loop if it calls prepare and defines no function job."""

from pathlib import Path

import pytest

from onecurve.job.script_path import has_own_loop


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import onecurve as oc\njob = oc.Job()\nwith oc.prepare(job) as run:\n    pass", True),
        ("from onecurve import prepare\nfrom jobs import job as mine\nrun = prepare(mine())", True),
        ("def main():\n    def job(): ...\n    oc.prepare(job())\nmain()", True),
        ("def job():\n    ...\nif __name__ == '__main__':\n    oc.prepare(job())", False),
        ("from jobs import job\noc.prepare(job())", True),
        ("print('neither')", False),
        ("def job(:", False),
    ],
)
def test_which_scripts_have_their_own_loop(text: str, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    assert has_own_loop(path) == expected
