"""Addresses of stores and servers: their keys are not printed, and all who join one service have the same."""

from onecurve.describe.generation import StoreAddress
from onecurve.describe.row_servers import RowServerAddress


def test_the_key_of_a_store_is_not_printed() -> None:
    assert "5ec7e7" not in repr(StoreAddress("127.0.0.1", 4000, "5ec7e7"))


def test_servers_of_one_etcd_name_have_one_key() -> None:
    one, other = (RowServerAddress.of_etcd(f"etcd://{host}:2379/rows", "") for host in ("a", "b"))
    assert one.is_etcd
    assert one.key == other.key != RowServerAddress.of_etcd("etcd://a:2379/others", "").key
    assert "5ec7e7" not in repr(RowServerAddress("local", "5ec7e7", ""))
