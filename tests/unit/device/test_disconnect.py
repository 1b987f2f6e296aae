"""A rank leaves a process group whose other rank no longer answers."""

import re
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from harness import JOBS, python
from onecurve.device.disconnect import disconnect
from onecurve.hosts.store_process import start_store


@pytest.fixture
def store() -> Iterator[list[str]]:
    """Host, port and key of a store."""
    key = secrets.token_bytes(32)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = start_store(listener, key)
        yield ["127.0.0.1", str(listener.getsockname()[1]), key.hex()]
    process.kill()
    process.wait()


@pytest.mark.parametrize("lazy", ["0", "1"])
def test_a_rank_leaves_although_the_other_one_is_stopped(store, lazy: str) -> None:
    done = python(str(JOBS / "left_group.py"), *store, GLOO_SOCKET_IFNAME="lo", TORCH_GLOO_LAZY_INIT=lazy)
    assert done.returncode == 0, done.stderr
    left = re.search(r"left after (.*) s: RuntimeError", done.stdout)
    assert left is not None, done.stdout
    assert float(left[1]) < 3  # it waits for half a second before it cuts; without, it would wait for half an hour
    assert "kept mine" in done.stdout  # the user's own connection
    assert "destroyed" in done.stdout


def test_a_connection_that_is_being_made_is_cut_too() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        host, port = listener.getsockname()
        address = struct.pack("=H", socket.AF_INET) + struct.pack("!H", port) + socket.inet_aton(host)
        connecting = [stack.enter_context(socket.socket()) for _ in range(4)]
        for each in connecting:
            each.setblocking(False)
            each.connect_ex((host, port))  # the kernel does not answer once the listener's queue is full
        time.sleep(0.1)
        waiting = [each for each in connecting if _is_waiting(each)]
        assert waiting
        assert disconnect([b"before" + address + b"after"]) == len(connecting)
        assert not any(map(_is_waiting, waiting))
        assert disconnect([b"other addresses"]) == 0


def _is_waiting(connecting: socket.socket) -> bool:
    """True if the other side has not answered."""
    return connecting.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 2  # SYN_SENT
