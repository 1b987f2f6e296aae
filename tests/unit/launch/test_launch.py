import json
import socket
import sys
from types import SimpleNamespace

import pytest
from onecurve.launch.failure_file import lost_connection, write_failure
from onecurve.launch.rendezvous import LoopbackRendezvous
from torch.distributed import TCPStore

from harness import python
from onecurve.describe.errors import OnecurveError, UserCodeError, full_text
from onecurve.launch import failure_file
from onecurve.launch.failure import first_failure


def test_each_generation_gets_a_new_store_on_the_loopback_device() -> None:
    handler = LoopbackRendezvous("run")
    first, second = handler.next_rendezvous(), handler.next_rendezvous()
    info = second.bootstrap_store_info
    assert info.master_addr == "127.0.0.1"
    assert info.master_port != first.bootstrap_store_info.master_port
    second.store.set("key", "value")
    client = TCPStore("127.0.0.1", info.master_port, is_master=False)
    assert client.get("generation-2/key") == b"value"
    with socket.create_server(("127.0.0.2", info.master_port)):  # the store does not listen on other addresses
        pass


CLOSED = "[third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:38018"
KILLED = SimpleNamespace(error_file_data={"message": "<NONE>"}, timestamp=101, exitcode=-9)
ENDED_BY_AGENT = SimpleNamespace(error_file_data={"message": "<NONE>"}, timestamp=100, exitcode=-15)
ABORTED = SimpleNamespace(error_file_data={"message": "<NONE>"}, timestamp=100, exitcode=-6)


@pytest.fixture(autouse=True)
def no_wait(monkeypatch) -> None:
    monkeypatch.setattr(failure_file, "_WAIT_SECONDS", 0.0)


def failure_of(error: Exception, tmp_path, monkeypatch, name: str, time: float):
    path = tmp_path / name
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert write_failure(error)
    data = json.loads(path.read_text()) | {"time": time}
    return SimpleNamespace(error_file_data=data, timestamp=0, exitcode=1)


def test_the_earliest_failure_is_reported_with_its_rank(tmp_path, monkeypatch) -> None:
    failures = {
        0: failure_of(ValueError("later"), tmp_path, monkeypatch, "a", 5.2),
        1: failure_of(UserCodeError("loss: it raised"), tmp_path, monkeypatch, "b", 5.1),
    }
    assert str(first_failure(failures)) == "rank 1 failed: loss: it raised"


def test_a_lost_connection_is_not_the_cause_even_if_it_was_reported_earlier(tmp_path, monkeypatch) -> None:
    in_forward = UserCodeError("model: forward raised RuntimeError")  # sharded parameters are gathered in forward
    in_forward.__cause__ = RuntimeError(CLOSED)
    for lost in (RuntimeError(CLOSED), RuntimeError("Broken pipe"), in_forward):
        first = failure_of(lost, tmp_path, monkeypatch, "a", 5.0)
        true = failure_of(UserCodeError("loss: it raised"), tmp_path, monkeypatch, "b", 9.0)
        assert str(first_failure({0: first, 1: true})) == "rank 1 failed: loss: it raised"
        assert "rank 1 was killed by SIGKILL" in str(first_failure({0: first, 1: KILLED}))
        assert "rank 1 was killed by SIGABRT" in str(first_failure({0: first, 1: ABORTED}))


def test_if_only_connections_were_lost_it_is_said(tmp_path, monkeypatch) -> None:
    lost = failure_of(RuntimeError(CLOSED), tmp_path, monkeypatch, "a", 5.0)
    message = str(first_failure({0: ENDED_BY_AGENT, 1: lost}))
    assert message == f"rank 1 failed: the connection to another rank was lost: RuntimeError: {CLOSED}"


def test_a_connection_of_the_users_own_code_is_not_one_between_ranks() -> None:
    error = UserCodeError("data: it raised ConnectionResetError")
    error.__cause__ = ConnectionResetError(104, "Connection reset by peer")
    assert lost_connection(error) == ""


def test_an_abort_is_not_the_cause_if_another_rank_has_an_error(tmp_path, monkeypatch) -> None:
    failed = failure_of(ValueError("mine"), tmp_path, monkeypatch, "a", 100.7)
    assert "ValueError: mine" in str(first_failure({0: ABORTED, 1: failed}))


def test_a_rank_that_cannot_import_torch_reports_it(tmp_path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libtorch.so is broken')")
    file = tmp_path / "error.json"
    path = ":".join([str(tmp_path), *filter(None, sys.path)])
    failed = python("-m", "onecurve.verbs.rank", "run", "{}", TORCHELASTIC_ERROR_FILE=str(file), PYTHONPATH=path)
    assert failed.returncode == 1
    assert failed.stderr == ""
    failure = SimpleNamespace(error_file_data=json.loads(file.read_text()), timestamp=0, exitcode=1)
    assert "libtorch.so is broken" in str(first_failure({0: failure}))


def test_a_failure_that_cannot_be_written_is_printed_by_the_rank(tmp_path) -> None:
    missing = str(tmp_path / "missing" / "error.json")
    failed = python("-m", "onecurve.verbs.rank", "run", "{}", TORCHELASTIC_ERROR_FILE=missing)
    assert failed.returncode == 1
    assert "request" in failed.stderr


def test_an_input_error_is_reported_without_a_rank(tmp_path, monkeypatch) -> None:
    failures = {3: failure_of(OnecurveError("plan: bad"), tmp_path, monkeypatch, "a", 1.0)}
    assert str(first_failure(failures)) == "plan: bad"


def test_a_killed_rank_is_reported_with_the_signal() -> None:
    killed = SimpleNamespace(error_file_data={"message": "<NONE>"}, timestamp=3, exitcode=-9)
    assert "rank 2 was killed by SIGKILL" in str(first_failure({2: killed}))


def test_ranks_that_the_agent_ended_are_never_the_cause(tmp_path, monkeypatch) -> None:
    failed = failure_of(OnecurveError("plan: bad"), tmp_path, monkeypatch, "a", 100.7)
    assert str(first_failure({0: ENDED_BY_AGENT, 1: failed})) == "plan: bad"


def test_a_killed_rank_is_the_cause_of_errors_that_were_written_before_it_was_noticed(tmp_path, monkeypatch) -> None:
    survivor = failure_of(ValueError("a consequence"), tmp_path, monkeypatch, "a", 100.2)
    assert "rank 1 was killed by SIGKILL" in str(first_failure({0: survivor, 1: KILLED}))


def test_no_failure_is_written_without_an_agent(monkeypatch) -> None:
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    assert not write_failure(ValueError("x"))


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
