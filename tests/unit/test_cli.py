import subprocess
import sys
import time

import pytest

from onecurve.cli import main


def test_help_does_not_wait_for_torch() -> None:
    begin = time.perf_counter()
    code = "import sys; from onecurve.cli.arguments import command_parser as p; p(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], text=True, capture_output=True, check=True)
    assert done.stdout.strip() == "False"
    assert time.perf_counter() - begin < 5


def test_a_missing_script_is_said(capsys) -> None:
    assert main(["run", "nowhere.py"]) == 1
    assert "nowhere.py: no such file" in capsys.readouterr().err


def test_an_unknown_flag_is_said(capsys) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["run", "train.py", "--rank", "2"])
    assert ended.value.code == 2
    assert "unknown flag --rank (did you mean '--ranks'?); see 'onecurve run --help'" in capsys.readouterr().err


def test_a_wrong_plan_is_said_before_ranks_are_started(capsys, tmp_path) -> None:
    script = tmp_path / "train.py"
    script.write_text("")
    assert main(["run", str(script), "--plan", "replicat2 mb4"]) == 1
    assert "did you mean 'replicate'" in capsys.readouterr().err
    assert main(["run", str(script), "--plan", "replicate2 mb4", "--ranks", "3"]) == 1
    assert "it has 2 ranks, but 3 were asked for" in capsys.readouterr().err
