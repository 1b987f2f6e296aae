"""Where row servers are found, and what one is started with."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RowServerAddress:
    """The service through which the row servers of a job agree."""

    host: str
    port: int
    key: str
    """The key that all of them know, in hexadecimal digits."""


@dataclass(frozen=True)
class ServerOrder:
    """What a row server is started with."""

    name: str
    """One that no server has had before."""
    machine: str
    listen: str
    """Address of this host at which it is reached."""
    service: RowServerAddress
    parent: int | None = None
    """The process with which it ends; None if it goes on alone."""
