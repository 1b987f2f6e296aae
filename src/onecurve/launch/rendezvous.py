"""The rendezvous of the ranks of one host: a TCPStore on the loopback device, a new one for each generation.

torch's own rendezvous unpickles data that any client can write, and its stores listen on all network interfaces. This
one listens on 127.0.0.1 only and decodes nothing.
"""

import socket

from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo

_LOOPBACK = "127.0.0.1"


class LoopbackRendezvous(RendezvousHandler):
    """A rendezvous of one agent, on this host; the ranks use the agent's store."""

    def __init__(self, run_id: str) -> None:
        self._run_id = run_id
        self._generation = 0
        self._store: TCPStore | None = None

    def next_rendezvous(self) -> RendezvousInfo:
        # Ranks connect to the store without a prefix, so keys of different generations are separate only in new stores.
        listener = socket.create_server((_LOOPBACK, 0))
        port = listener.getsockname()[1]
        self._store = TCPStore(
            _LOOPBACK, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach()
        )
        self._generation += 1
        store = PrefixStore(f"generation-{self._generation}", self._store)
        return RendezvousInfo(store, 0, 1, RendezvousStoreInfo(_LOOPBACK, port))

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "onecurve-loopback"

    def get_run_id(self) -> str:
        return self._run_id

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def shutdown(self) -> bool:
        self._store = None
        return True
