"""`onecurve doctor`, `onecurve --version --verbose` and `onecurve completion`."""

import json
import subprocess
from pathlib import Path

import pytest

from onecurve.cli.main import main


def test_doctor_says_what_is_wrong(tmp_path: Path, capsys) -> None:
    status = main(["doctor", "--out", str(tmp_path / "runs"), "--json"])
    checks = json.loads(capsys.readouterr().out)["checks"]
    assert status == int(any(check["state"] == "problem" for check in checks))
    (tmp_path / "file").touch()
    assert main(["doctor", "--out", str(tmp_path / "file")]) == 1
    assert "problem" in capsys.readouterr().out.splitlines()[-1]


def test_versions_for_a_bug_report(capsys) -> None:
    assert main(["--version", "--verbose"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("onecurve")
    assert any(line.startswith("torch ") and "backends" in line for line in lines)


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_completion(shell: str, capsys, tmp_path: Path) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert ("--slurm" if shell != "tcsh" else "doctor") in script  # tcsh completes no flags of verbs
    if shell == "bash":
        (tmp_path / "script").write_text(script)
        subprocess.run(["bash", "-n", str(tmp_path / "script")], check=True)
