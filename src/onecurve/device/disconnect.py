"""Cuts this rank's connections to the other ranks, so that it leaves a process group that cannot go on.

A rank in a collective does not notice that another one was stopped or cut off. gloo cannot abort (pytorch#130345): only
an error of its sockets makes its collectives raise.
"""

import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from pathlib import Path

import torch.distributed as dist
from torch.distributed import distributed_c10d

_SYN_SENT, _LISTEN = 2, 10
"""States of a TCP socket."""


def disconnect(exchanged: Collection[bytes]) -> int:
    """Shut down the connections of this process's groups; return how many there were.

    Every collective of this process, under way or later, then raises. gloo connects when two ranks first exchange data:
    call it again until the process has left its groups.

    Args:
        exchanged: what the ranks have exchanged through their store. gloo's addresses are among it: a connection whose
            own or other end is one of these addresses belongs to gloo, and all other connections are the user's.
    """
    if dist.is_initialized() and dist.get_backend() != "gloo":
        with suppress(RuntimeError):
            distributed_c10d._abort_process_group()
    known = b"\n".join(exchanged)
    count = 0
    for connection in _connections():
        with closing(connection), suppress(OSError):
            if any(address in known for address in _addresses(connection)):
                connection.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


def _connections() -> Iterator[socket.socket]:
    """The TCP sockets of this process that are connected, or are being connected, as duplicates.

    Sockets that listen are left out: gloo ends the process if its own is shut down.
    """
    for entry in os.scandir("/proc/self/fd"):
        with suppress(OSError):
            if not os.readlink(entry.path).startswith("socket:"):
                continue
            duplicate = socket.socket(fileno=os.dup(int(entry.name)))
            is_tcp = duplicate.family in (socket.AF_INET, socket.AF_INET6) and duplicate.type == socket.SOCK_STREAM
            if is_tcp and _state(duplicate) != _LISTEN:
                yield duplicate
            else:
                duplicate.close()


def _addresses(connection: socket.socket) -> Iterator[bytes]:
    """Both ends of a connection as gloo writes them: the beginning of a C `sockaddr`."""
    yield _sockaddr(connection.family, connection.getsockname())
    if _state(connection) != _SYN_SENT:
        yield _sockaddr(connection.family, connection.getpeername())
    elif (remote := _remote_of(connection)) is not None:
        yield remote


def _sockaddr(family: int, address: tuple[object, ...]) -> bytes:
    host, port = str(address[0]), int(str(address[1]))
    head = struct.pack("=H", family) + struct.pack("!H", port)
    if family == socket.AF_INET:
        return head + socket.inet_pton(socket.AF_INET, host)
    return head + struct.pack("!I", int(str(address[2]))) + socket.inet_pton(socket.AF_INET6, host.partition("%")[0])


def _state(connection: socket.socket) -> int:
    return connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0]


def _remote_of(connection: socket.socket) -> bytes | None:
    """The other end of a connection that is being made. Only the kernel's table shows it."""
    inode = str(os.fstat(connection.fileno()).st_ino)
    is_v4 = connection.family == socket.AF_INET
    for line in Path("/proc/self/net/tcp" if is_v4 else "/proc/self/net/tcp6").read_text().splitlines()[1:]:
        words = line.split()
        if words[9] == inode:
            digits, port = words[2].split(":")
            # The table shows an address as 32-bit numbers of the machine.
            numbers = [int(digits[at : at + 8], 16) for at in range(0, len(digits), 8)]
            address = b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)
            head = struct.pack("=H", connection.family) + struct.pack("!H", int(port, 16))
            return head + (b"" if is_v4 else bytes(4)) + address
    return None
