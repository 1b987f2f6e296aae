"""Where row servers are found, and what one is started with."""

import hashlib
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RowServerAddress:
    """The service through which the row servers of a job agree."""

    service: str
    """`HOST:PORT` of a launcher's, or `etcd://HOST:PORT,…/NAME`."""
    key: str = field(repr=False)
    """The key that all of them know, in hexadecimal digits."""
    tls: str = ""
    """Folder with the certificates for connections; empty if they are not encrypted."""

    @property
    def is_etcd(self) -> bool:
        """True if the service is etcd, which may be away for a time; a launcher's is gone with it."""
        return "://" in self.service

    @staticmethod
    def of_etcd(address: str, tls: str) -> "RowServerAddress":
        """Servers that agree through etcd. Who may connect is decided by certificates, not by a key."""
        return RowServerAddress(address, hashlib.sha256(address.rpartition("/")[2].encode()).hexdigest(), tls)


@dataclass(frozen=True)
class ServerOrder:
    """What a row server is started with."""

    name: str
    """One that no server has had before."""
    machine: str
    """No two copies of a row are on the same."""
    listen: str
    """Address of this host at which it is reached."""
    address: RowServerAddress
    parent: int | None = None
    """The process with which it ends; None if it goes on alone."""
    spill: str = ""
    """Folder for rows that do not fit in its memory; empty if all rows are in memory."""
    memory: int = 0
    """Bytes of rows in memory, if there is such a folder."""
