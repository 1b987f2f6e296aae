"""Every backend of the coordination between hosts, as fixtures."""

from collections.abc import Iterator

import pytest

from coordination_services import Backend, EtcdCluster, running_etcd


@pytest.fixture(scope="session")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    """One member of etcd, shared by all tests."""
    with running_etcd(tmp_path_factory.mktemp("etcd"), 1) as cluster:
        yield cluster


@pytest.fixture(params=["local", "remote", "etcd"])
def backend(request: pytest.FixtureRequest) -> Backend:
    etcd = request.getfixturevalue("etcd") if request.param == "etcd" else None
    return Backend(request.param, etcd)
