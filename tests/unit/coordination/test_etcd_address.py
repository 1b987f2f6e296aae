import ssl

import pytest

from onecurve.coordination.errors import CoordinationError
from onecurve.coordination.etcd_address import EtcdAddress


def test_members_and_credentials_are_read():
    address = EtcdAddress.parse("etcd://a:1,[::1]:2,b", {"ETCDCTL_USER": "me:pass:word"})
    assert address.endpoints == (("a", 1), ("::1", 2), ("b", 2379))
    assert (address.user, address.password, address.tls) == ("me", "pass:word", None)
    assert "pass:word" not in f"{address} {address!r}"


def test_etcds_means_tls_with_a_verified_certificate():
    address = EtcdAddress.parse("etcds://a:1", {})
    assert address.tls is not None
    assert address.tls.verify_mode == ssl.CERT_REQUIRED
    assert address.tls.check_hostname
    assert str(address) == "etcds://a:1"


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://a:1", "etcd://HOST:PORT"),
        ("a:1", "etcd://HOST:PORT"),
        ("etcd://", "'' is not HOST:PORT"),
        ("etcd://a:x", "'a:x' is not HOST:PORT"),
        ("etcd://a:1,,b:2", "'' is not HOST:PORT"),
    ],
)
def test_other_addresses_are_refused(url, text):
    with pytest.raises(CoordinationError, match=text):
        EtcdAddress.parse(url, {})


def test_a_password_in_the_address_is_refused_and_not_repeated():
    with pytest.raises(CoordinationError, match="set ETCDCTL_USER=name:password") as raised:
        EtcdAddress.parse("etcd://me:secret@a:1", {})
    assert "secret" not in str(raised.value)


def test_a_certificate_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(CoordinationError, match="ETCDCTL_CACERT"):
        EtcdAddress.parse("etcds://a:1", {"ETCDCTL_CACERT": str(tmp_path / "missing.pem")})
