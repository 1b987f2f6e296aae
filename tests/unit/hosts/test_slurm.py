"""The batch script of `onecurve run --slurm`."""

import subprocess
from pathlib import Path

import pytest

from onecurve.hosts import slurm
from onecurve.hosts.slurm import BatchFiles, batch_script, follow


@pytest.fixture
def files(tmp_path: Path) -> BatchFiles:
    folder = tmp_path / "a folder"
    folder.mkdir()
    return BatchFiles(folder / "slurm.sh", folder / "slurm.log", folder / "started", folder / "summary.json")


def execute(tmp_path: Path, files: BatchFiles, arguments: list[str], restarts: int) -> list[str]:
    """The words that srun gets; srun and scontrol are replaced by scripts."""
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    for name, text in (("srun", f"printf '%s\\n' \"$@\" > '{tools}/words'"), ("scontrol", "true")):
        (tools / name).write_text(f"#!/bin/sh\n{text}\n")
        (tools / name).chmod(0o755)
    files.script.write_text(batch_script("--nodes=2", arguments, files))
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "SLURM_RESTART_COUNT": str(restarts), "SLURM_JOB_ID": "1"}
    subprocess.run(["bash", str(files.script)], env=environment, check=True, timeout=30)
    return (tools / "words").read_text().splitlines()


ARGUMENTS = ["run", "my script.py", "--change", "optimizer", "--fresh", "--out", "x y", "--change=data", "lr=1e-4"]


def test_the_first_execution_has_all_arguments(tmp_path: Path, files: BatchFiles) -> None:
    words = execute(tmp_path, files, ARGUMENTS, 0)
    assert sorted(words[words.index("run") :]) == sorted(ARGUMENTS)
    assert words[words.index("--change") + 1] == "optimizer"
    assert words[words.index("--out") + 1] == "x y"


def test_the_next_execution_continues(tmp_path: Path, files: BatchFiles) -> None:
    words = execute(tmp_path, files, ARGUMENTS, 1)
    assert words[words.index("run") :] == ["run", "my script.py", "--out", "x y", "lr=1e-4"]


def test_options_and_paths_are_in_the_head(files: BatchFiles) -> None:
    text = batch_script("--nodes=2 --time=1:00:00", ["run", "train.py"], files)
    assert "#SBATCH --nodes=2 --time=1:00:00\n" in text
    assert f"--output='{files.log}'" in text


@pytest.mark.parametrize(("state", "ended_well"), [("COMPLETED", True), ("FAILED", False)])
def test_a_job_is_followed_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, state: str, ended_well: bool
) -> None:
    states, shown = iter(["PENDING", "", "RUNNING", state]), []
    log = tmp_path / "log"
    log.write_text("of an earlier start\n")

    def asked(*_: object, **__: object) -> subprocess.CompletedProcess[str]:
        now = next(states)
        with log.open("a") as opened:
            opened.write(f"[{now}]")
        return subprocess.CompletedProcess([], 0, f"JobId=1 JobState={now} Reason=None" if now else "", "")

    monkeypatch.setattr(slurm.subprocess, "run", asked)
    monkeypatch.setattr(slurm.time, "sleep", lambda _: None)
    assert follow(1, log, shown.append) == ended_well
    assert "".join(shown) == f"[PENDING][][RUNNING][{state}]"


def test_a_job_that_slurm_has_forgotten_has_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = subprocess.CompletedProcess([], 1, "", "slurm_load_jobs error: Invalid job id specified")
    monkeypatch.setattr(slurm.subprocess, "run", lambda *_, **__: gone)
    assert not follow(1, tmp_path / "log", lambda _: None)
