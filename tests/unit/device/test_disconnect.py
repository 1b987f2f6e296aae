"""A rank leaves a process group whose other rank no longer answers."""

import re
import secrets
import socket
from collections.abc import Iterator

import pytest

from harness import JOBS, python
from onecurve.launch.store_process import start_store


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
