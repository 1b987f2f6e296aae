"""Serves the store of ranks that have no launcher of ours: a small process of the first rank.

python -m onecurve.hosts.store_process DESCRIPTOR PARENT < KEY
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys

from onecurve.coordination.store_server import StoreServer
from onecurve.device.parent_process import die_with_parent


def start_store(listener: socket.socket, key: bytes) -> "subprocess.Popen[bytes]":
    """Serve a store on a bound socket until the returned process, or this one, ends."""
    command = [sys.executable, "-m", __name__, str(listener.fileno()), str(os.getpid())]
    process = subprocess.Popen(command, pass_fds=[listener.fileno()], stdin=subprocess.PIPE)
    assert process.stdin is not None
    with process.stdin as pipe:  # not an argument: every user sees those
        pipe.write(key)
    return process


async def serve(listener: socket.socket, key: bytes) -> None:
    StoreServer(listener, key).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the ranks decide when to stop
        signal.signal(number, signal.SIG_IGN)
    die_with_parent(int(sys.argv[2]))
    asyncio.run(serve(socket.socket(fileno=int(sys.argv[1])), sys.stdin.buffer.read()))
