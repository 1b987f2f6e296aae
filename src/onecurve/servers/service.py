"""The service through which row servers and ranks agree: of a launcher, or etcd."""

from onecurve.coordination.client import RemoteCoordination
from onecurve.coordination.coordination import Coordination
from onecurve.coordination.etcd import EtcdCoordination
from onecurve.coordination.etcd_address import EtcdAddress
from onecurve.describe.row_servers import RowServerAddress


async def connect_service(address: RowServerAddress) -> Coordination:
    """Connect to the service."""
    if address.is_etcd:
        url, _, name = address.service.rpartition("/")
        return EtcdCoordination(EtcdAddress.parse(url), name)
    host, _, port = address.service.rpartition(":")
    return await RemoteCoordination.connect(host, int(port), bytes.fromhex(address.key))


def etcd_member(address: str) -> tuple[str, int]:
    """Host and port of a member of etcd, of an address `etcd://HOST:PORT,…/NAME`."""
    return EtcdAddress.parse(address.rpartition("/")[0]).endpoints[0]
