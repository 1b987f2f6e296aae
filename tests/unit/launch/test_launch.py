import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import JOBS, python
from onecurve.describe.assignment import RankFailure
from onecurve.describe.errors import InterruptError, OnecurveError, UserCodeError, full_text
from onecurve.device.scratch import Scratch, new_scratch
from onecurve.launch import failure_report
from onecurve.launch.failure import RankFailedError, first_failure
from onecurve.launch.failure_report import lost_connection, report_failure, report_of
from onecurve.launch.local import LocalRanks
from onecurve.launch.message_socket import MessageSocket


@pytest.fixture
def program(monkeypatch):
    """Makes a launcher of tests/jobs/rank_program.py, and collects what it says."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(JOBS), *filter(None, sys.path)]))
    opened = []

    def start(request: str = "{}") -> tuple[LocalRanks, list[str]]:
        said: list[str] = []
        opened.append(LocalRanks("rank_program", "work", request, said.append))
        return opened[-1], said

    yield start
    for launcher in opened:
        launcher.__exit__(None, None, None)


def gone(pid: int) -> bool:
    """True once the process has ended."""
    for _ in range(100):
        if not Path(f"/proc/{pid}").exists() or Path(f"/proc/{pid}/stat").read_text().split()[2] in "ZX":
            return True
        time.sleep(0.05)
    return False


def test_one_template_is_forked_for_every_rank_and_every_start(program) -> None:
    launcher, said = program()
    answers = [[answer.split() for answer in launcher.run("work", "{}", 3).results] for _ in range(2)]
    assert [[answer[2:] for answer in start] for start in answers] == 2 * [
        [["0", "3", "True"], ["1", "3", "True"], ["2", "3", "True"]]
    ]
    assert len({answer[1] for start in answers for answer in start}) == 1  # their parent
    assert len({answer[0] for start in answers for answer in start}) == 6
    assert all(gone(int(answer[0])) for start in answers for answer in start)
    assert launcher.run("say", "{}", 1).signal is None
    assert said == ["rank 0 says it"]


@pytest.mark.parametrize(
    ("verb", "message"),
    [
        ("fail", "rank 1 failed: .*ValueError: mine"),
        ("exit", "rank 1 ended with exit status 1"),
        ("kill", "rank 1 was killed by SIGKILL.*out of memory"),
        ("lose", "rank 1 failed: .*the cause"),
    ],
)
def test_the_failure_of_one_rank_ends_all_and_is_named(program, verb: str, message: str) -> None:
    launcher, _ = program()
    with pytest.raises(RankFailedError, match=f"(?s){message}"):
        launcher.run(verb, "{}", 2)
    assert launcher.run("work", "{}", 1).results is not None  # the template still serves


@pytest.mark.parametrize(
    ("request_text", "reason"),
    [("thread", "1 more thread"), ("thread always", "1 more thread"), ("broken", "raised ImportError")],
)
def test_ranks_start_though_the_program_cannot_be_forked(program, request_text: str, reason: str) -> None:
    launcher, said = program(request_text)
    answers = [answer.split() for answer in launcher.run("work", "{}", 2).results]
    assert [answer[2:4] for answer in answers] == [["0", "2"], ["1", "2"]]
    assert len(said) == (1 if request_text == "thread" else 2)
    assert reason in said[0]


@pytest.mark.parametrize(
    ("variable", "value", "spin_count"),
    [("", "", "1000"), ("GOMP_SPINCOUNT", "7", "7"), ("OMP_WAIT_POLICY", "active", "")],
)
def test_waiting_threads_of_a_rank_give_up_their_core(
    program, monkeypatch, variable: str, value: str, spin_count: str
) -> None:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, value)
    launcher, _ = program()
    assert launcher.run("spin", "{}", 1).results == [spin_count]


@pytest.mark.parametrize(("verb", "results"), [("stop", ["SIGTERM", "SIGTERM"]), ("ignore", None)])
def test_a_signal_asks_the_ranks_to_stop_and_a_second_one_kills_them(verb: str, results, monkeypatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(JOBS), *filter(None, sys.path)]))
    # In verb "ignore" the ranks say this again and again, and do not stop when they are asked to.
    with LocalRanks("rank_program", "work", "{}", lambda _: os.kill(os.getpid(), signal.SIGTERM)) as launcher:
        ended = launcher.run(verb, "{}", 2)
    assert ended.signal == "SIGTERM"
    assert ended.results == results


def test_ranks_do_not_outlive_a_launcher_that_is_killed() -> None:
    script = (
        "import sys\nfrom onecurve.launch.local import LocalRanks\n"
        "LocalRanks('rank_program', 'work', '{}', print).run('wait', '{}', 2)"
    )
    path = os.pathsep.join([str(JOBS), *filter(None, sys.path)])
    with subprocess.Popen([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": path}) as launcher:
        pids: list[int] = []
        deadline = time.monotonic() + 60
        while len(pids) < 3 and time.monotonic() < deadline:
            pids = _descendants(launcher.pid)
            time.sleep(0.05)
        assert len(pids) == 3  # the template and two ranks
        launcher.kill()
    assert all(gone(pid) for pid in pids)


def _descendants(pid: int) -> list[int]:
    children = [
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and _parent_of(entry) == pid
    ]
    return [*children, *(each for child in children for each in _descendants(child))]


def _parent_of(entry: Path) -> int:
    try:
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def test_a_notebook_with_a_running_event_loop_can_launch(program) -> None:
    launcher, _ = program()

    async def cell() -> int:
        return len(launcher.run("work", "{}", 2).results)

    assert asyncio.run(cell()) == 2


def test_messages_of_any_length_and_descriptors_arrive() -> None:
    ours, other = MessageSocket.pair()
    theirs = MessageSocket(other)
    text = "x" * 300_000
    reader, writer = os.pipe()
    if os.fork() == 0:
        ours.send({"text": text})
        ours.send({"kind": "pipe"}, reader)
        os._exit(0)
    assert theirs.receive() == {"text": text}
    assert theirs.receive() == {"kind": "pipe"}
    os.write(writer, b"through")
    assert os.read(theirs.take_descriptor(), 100) == b"through"
    ours.close()
    assert theirs.receive() is None
    assert theirs.is_closed
    theirs.send({"nobody": "reads this"})


CLOSED = "[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:38018"


def failure(rank: int, error: Exception, at: float) -> RankFailure:
    return RankFailure(rank=rank, **(report_of(error) | {"time": at}))


def ended(rank: int, status: int, at: float = 101.0) -> RankFailure:
    return RankFailure(rank=rank, time=at, exit_status=status)


def test_the_earliest_failure_is_reported_with_its_rank() -> None:
    failures = [failure(0, ValueError("later"), 5.2), failure(1, UserCodeError("loss: it raised"), 5.1)]
    assert str(first_failure(failures)) == "rank 1 failed: loss: it raised"


def test_a_lost_connection_is_not_the_cause_even_if_it_was_reported_earlier() -> None:
    in_forward = UserCodeError("model: forward raised RuntimeError")  # sharded parameters are gathered in forward
    in_forward.__cause__ = RuntimeError(CLOSED)
    for error in (RuntimeError(CLOSED), RuntimeError("Broken pipe"), in_forward):
        lost = failure(0, error, 5.0)
        assert str(first_failure([lost, failure(1, UserCodeError("loss: it raised"), 9.0)])) == (
            "rank 1 failed: loss: it raised"
        )
        assert "rank 1 was killed by SIGKILL" in str(first_failure([lost, ended(1, -signal.SIGKILL)]))
        assert "rank 1 was killed by SIGABRT" in str(first_failure([lost, ended(1, -signal.SIGABRT)]))


def test_if_only_connections_were_lost_it_is_said() -> None:
    message = str(first_failure([failure(1, RuntimeError(CLOSED), 5.0)]))
    assert message == f"rank 1 failed: the connection to another rank was lost: RuntimeError: {CLOSED}"


def test_a_connection_of_the_users_own_code_is_not_one_between_ranks() -> None:
    error = UserCodeError("data: it raised ConnectionResetError")
    error.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    assert lost_connection(error) == ""


def test_an_abort_is_not_the_cause_if_another_rank_has_an_error() -> None:
    failures = [ended(0, -signal.SIGABRT), failure(1, ValueError("mine"), 100.7)]
    assert "ValueError: mine" in str(first_failure(failures))


def test_an_input_error_is_reported_without_a_rank() -> None:
    error = first_failure([failure(3, OnecurveError("plan: bad"), 1.0)])
    assert str(error) == "plan: bad"
    assert error.is_input_error


def test_a_killed_rank_is_the_cause_of_errors_that_were_reported_before_it_was_noticed() -> None:
    failures = [failure(0, ValueError("a consequence"), 100.2), ended(1, -signal.SIGKILL)]
    assert "rank 1 was killed by SIGKILL" in str(first_failure(failures))


def test_an_interrupt_is_marked() -> None:
    assert report_of(InterruptError("interrupted", "SIGINT"))["is_interrupt"]
    assert not report_of(ValueError("x"))["is_interrupt"]


def test_torchrun_gets_the_failure_in_its_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(failure_report, "_WAIT_SECONDS", 0.0)
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert report_failure(UserCodeError("loss: it raised"))
    assert json.loads(path.read_text())["message"]["extraInfo"]["py_callstack"] == "loss: it raised"
    assert report_failure(RuntimeError(CLOSED))
    assert "connection to another rank was lost" in json.loads(path.read_text())["message"]["message"]
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(tmp_path / "missing" / "error.json"))
    assert not report_failure(ValueError("nobody reads it"))


def test_a_rank_that_cannot_import_torch_reports_it(tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is broken')")
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    failed = python("-m", "onecurve", "check", str(JOBS / "small.py"), "--plan", "replicate2 mb4", PYTHONPATH=path)
    assert failed.returncode == 1
    assert "libtorch.so is broken" in failed.stderr


def test_no_failure_is_reported_without_a_launcher(monkeypatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert not report_failure(ValueError("x"))


def test_tracebacks_begin_in_user_code() -> None:
    def user_function() -> None:
        raise KeyError("mine")

    with pytest.raises(KeyError) as caught:
        user_function()
    outer = UserCodeError("data: it raised")
    outer.__cause__ = caught.value
    text = full_text(outer)
    assert text.startswith("data: it raised")
    assert "KeyError: 'mine'" in text
    assert full_text(OnecurveError("short")) == "short"


def test_the_launcher_does_not_import_torch() -> None:
    code = "import sys, onecurve.cli, onecurve.verbs.run, onecurve.verbs.check, onecurve.verbs.probe"
    assert python("-c", f"{code}; sys.exit('torch' in sys.modules)").returncode == 0


@pytest.mark.parametrize("victim", ["launcher", "template"])
def test_a_killed_start_leaves_no_folder(victim: str, tmp_path: Path) -> None:
    program = (
        "import sys\nfrom onecurve.launch.local import LocalRanks\n"
        "with LocalRanks('rank_program', 'work', '{}', say=lambda text: print(text, flush=True)) as launcher:\n"
        "    print(launcher.template._process.pid, flush=True)\n"
        "    launcher.run('ignore', '{}', 2)\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(JOBS)}
    with subprocess.Popen(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        template = int(process.stdout.readline())
        assert process.stdout.readline() == "running\n"
        assert len(list(tmp_path.glob("onecurve-start-*"))) == 1
        os.kill(process.pid if victim == "launcher" else template, signal.SIGKILL)
        process.wait(20)
    deadline = time.monotonic() + 20
    while list(tmp_path.iterdir()):
        assert time.monotonic() < deadline, list(tmp_path.iterdir())
        time.sleep(0.05)


def test_a_start_removes_the_folders_of_those_that_were_killed_completely(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    abandoned = tmp_path / "onecurve-start-x"
    abandoned.mkdir()
    (abandoned / "lock").touch()
    living = Scratch(new_scratch())
    assert not abandoned.exists()
    later = Scratch(new_scratch())
    assert living.path.exists()
    living.remove()
    later.remove()
    assert not list(tmp_path.iterdir())
