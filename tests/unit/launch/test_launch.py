import json
import socket
from types import SimpleNamespace

import pytest
from torch.distributed import TCPStore

from onecurve.describe.errors import OnecurveError, UserCodeError, full_text
from onecurve.launch.failure import first_failure, write_failure
from onecurve.launch.rendezvous import LoopbackRendezvous


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


def failure_of(error: Exception, tmp_path, monkeypatch, name: str, time: float):
    path = tmp_path / name
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    assert write_failure(error)
    data = json.loads(path.read_text()) | {"time": time}
    return SimpleNamespace(error_file_data=data, timestamp=0, exitcode=1)


def test_the_earliest_failure_is_reported_with_its_rank(tmp_path, monkeypatch) -> None:
    failures = {
        0: failure_of(RuntimeError("Connection closed by peer"), tmp_path, monkeypatch, "a", 5.2),
        1: failure_of(UserCodeError("loss: it raised"), tmp_path, monkeypatch, "b", 5.1),
    }
    assert str(first_failure(failures)) == "rank 1 failed: loss: it raised"


def test_an_input_error_is_reported_without_a_rank(tmp_path, monkeypatch) -> None:
    failures = {3: failure_of(OnecurveError("plan: bad"), tmp_path, monkeypatch, "a", 1.0)}
    assert str(first_failure(failures)) == "plan: bad"


def test_a_killed_rank_is_reported_with_the_signal() -> None:
    killed = SimpleNamespace(error_file_data={"message": "<NONE>"}, timestamp=3, exitcode=-9)
    assert "rank 2 was killed by SIGKILL" in str(first_failure({2: killed}))


def test_ranks_that_the_agent_ended_are_never_the_cause(tmp_path, monkeypatch) -> None:
    failed = failure_of(OnecurveError("plan: bad"), tmp_path, monkeypatch, "a", 100.7)
    ended = SimpleNamespace(error_file_data={"message": "<NONE>"}, timestamp=100, exitcode=-15)
    assert str(first_failure({0: ended, 1: failed})) == "plan: bad"


def test_a_killed_rank_is_the_cause_of_errors_that_were_written_before_it_was_noticed(tmp_path, monkeypatch) -> None:
    survivor = failure_of(RuntimeError("Connection reset by peer"), tmp_path, monkeypatch, "a", 100.2)
    killed = SimpleNamespace(error_file_data={"message": "<NONE>"}, timestamp=101, exitcode=-9)
    assert "rank 1 was killed by SIGKILL" in str(first_failure({0: survivor, 1: killed}))


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
