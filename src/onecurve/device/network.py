"""Addresses and network devices of this host."""

import fcntl
import socket
import struct

from onecurve.describe.errors import OnecurveError

_SIOCGIFADDR = 0x8915  # Linux: the IPv4 address of a network device
_ANYWHERE = ("192.0.2.1", 9)  # an address reserved for documentation: nothing is sent to it


def address_towards(host: str, port: int) -> str:
    """The address of this host from which `host` is reached."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, port))  # chooses a route; a datagram socket sends nothing here
            return str(probe.getsockname()[0])
    except OSError as error:
        raise OnecurveError(
            f"{host}:{port} cannot be reached from this host ({error.strerror or error}); check the name and the "
            "network"
        ) from None


def own_address() -> str:
    """The address at which other hosts most likely reach this one: of the default route, else of the first device."""
    try:
        return address_towards(*_ANYWHERE)
    except OnecurveError:
        addresses = [address for name, address in _device_addresses() if name != "lo"]
        return addresses[0] if addresses else "127.0.0.1"


def address_of(device: str) -> str:
    """The address of a network device, for example of `eth0`."""
    for name, own in _device_addresses():
        if name == device:
            return own
    known = ", ".join(name for name, _ in _device_addresses())
    raise OnecurveError(
        f"{device}: this host has no network device of that name with an address (it has {known}); correct "
        "GLOO_SOCKET_IFNAME, or leave it out"
    )


def device_of(address: str) -> str:
    """The name of the network device that has this address, for example `eth0`."""
    if address.startswith("127."):
        return "lo"
    for name, own in _device_addresses():
        if own == address:
            return name
    known = ", ".join(own for _, own in _device_addresses())
    raise OnecurveError(f"{address} is not an address of this host (it has {known}); give one of them")


def _device_addresses() -> list[tuple[str, str]]:
    """Names and IPv4 addresses of the network devices."""
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            try:
                answer = fcntl.ioctl(asked, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
            except OSError:  # it has none
                continue
            found.append((name, socket.inet_ntoa(answer[20:24])))
    return found
