"""Two ranks; the second one stops itself. The first one waits for it in a collective, until its connections are cut.

python left_group.py HOST PORT KEY
"""

import os
import signal
import socket
import sys
import threading
import time

import torch
import torch.distributed as dist

from onecurve.device.disconnect import disconnect
from onecurve.launch.rank_store import RankStore


def main(host: str, port: int, key: bytes) -> None:
    rank = 0 if os.fork() else 1
    store = RankStore(host, port, key)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    dist.all_reduce(torch.zeros(1))
    if rank == 1:
        store.set("stopped", str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
        os._exit(0)
    stopped = int(store.get("stopped"))
    own, other = _connected_pair()
    try:
        _leave(store, own, other)
    finally:
        os.kill(stopped, signal.SIGKILL)


def _leave(store: RankStore, own: socket.socket, other: socket.socket) -> None:
    cut: list[int] = []
    threading.Timer(0.5, lambda: cut.append(disconnect(store.exchanged))).start()
    begin = time.monotonic()
    try:
        dist.all_reduce(torch.zeros(1))
        raise SystemExit("the collective ended without the other rank")
    except RuntimeError as error:
        print(f"left after {time.monotonic() - begin:.1f} s: {type(error).__name__}")
    while not cut:
        time.sleep(0.01)
    print(f"cut {cut[0]}")
    own.sendall(b"mine")
    print(f"kept {other.recv(4).decode()}")
    dist.destroy_process_group()
    print("destroyed", flush=True)


def _connected_pair() -> tuple[socket.socket, socket.socket]:
    """A connection of the user's own."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own = socket.create_connection(listener.getsockname())
        return own, listener.accept()[0]


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), bytes.fromhex(sys.argv[3]))
