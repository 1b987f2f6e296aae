"""The protocol of the coordination service: what both backends do."""

from typing import Protocol

from onecurve.coordination.entry import Entry
from onecurve.coordination.lease import Lease
from onecurve.coordination.watch import Watch

TIMEOUT_SECONDS = 10.0
"""A request without an answer raises after this time. etcd needs about 2 s to replace a leader that died."""


class Coordination(Protocol):
    """Keys and values on which several hosts agree.

    Keys are 1 to 256 printable ASCII characters without spaces; values are text of at most 1,000,000 bytes in UTF-8
    (JSON, by convention). Writes are atomic and every reader sees them in the same order. If a connection fails,
    requests are sent again; a write that was already carried out is recognized and not repeated. Only if another host
    has replaced or deleted what `create` or `compare_and_set` had written before its answer was lost, the call returns
    False: what it wrote is gone, and whoever replaced it has seen it.

    Every method raises UnreachableError if there is no answer in time (10 s by default), and CoordinationError for a
    key or value outside the limits.

    How to keep a late writer from doing harm: whoever has won a number by `compare_and_set` writes only keys that
    contain this number; whoever holds a lease writes keys that belong to it, and is refused once the lease has
    expired.
    """

    async def lease(self, seconds: float) -> Lease:
        """Grant a lease that is kept alive in the background until it is closed or lost.

        If its keeper dies or is cut off, the lease expires after `seconds` and its keys are deleted. etcd grants whole
        seconds, at least 2, and deletes up to half a second late.
        """

    async def create(self, key: str, value: str, lease: Lease | None = None) -> bool:
        """Create the key if it is absent; return False if it exists.

        Raises LeaseLostError if the lease is no longer alive.
        """

    async def put(self, key: str, value: str, lease: Lease | None = None) -> None:
        """Write the key, whatever it holds. It belongs to `lease` from now on, or to none.

        The last writer wins: use it for keys that have a single writer. Raises LeaseLostError if the lease is no longer
        alive.
        """

    async def get(self, key: str) -> Entry | None:
        """Return the value of the key and its version, or None if it is absent."""

    async def compare_and_set(self, key: str, version: int, value: str) -> bool:
        """Write the key if it still has this version; return False if it was written or deleted since.

        The key keeps its lease.
        """

    async def delete(self, key: str) -> bool:
        """Delete the key; return False if it is absent."""

    async def watch(self, prefix: str) -> Watch:
        """Return an async iterator over the keys that begin with `prefix`, and over all later changes to them."""

    async def close(self) -> None:
        """Stop the background work, end the watches and drop the connections. Leases that are still open expire."""
