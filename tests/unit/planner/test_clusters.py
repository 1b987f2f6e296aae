"""This host is measured once; its cached measurements are used only for the same hardware."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from onecurve.describe.cluster import Cluster, DeviceSpec
from onecurve.describe.convert import write_toml
from onecurve.describe.errors import OnecurveError
from onecurve.device.device import local_cluster
from onecurve.planner.clusters import HERE, cache_host, cached_host, find_cluster, source_of, this_host


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the cache, which is empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "onecurve"


class Measure:
    """Stands for the probe, which takes 20 seconds, and counts its calls."""

    def __init__(self, change: Callable[[Cluster], Cluster] = lambda cluster: cluster) -> None:
        self.calls = 0
        self._change = change

    def __call__(self) -> Cluster:
        self.calls += 1
        return self._change(with_device(local_cluster(), memory_bandwidth=1e10))


def with_device(cluster: Cluster, **changes: object) -> Cluster:
    device: DeviceSpec = replace(cluster.groups[0].device, **changes)
    return replace(cluster, groups=(replace(cluster.groups[0], device=device),))


def silent(_: str) -> None:
    pass


def refuse_to_measure() -> Cluster:
    raise AssertionError("measured although it was not asked for")


def test_this_host_is_measured_once_and_cached(cache: Path) -> None:
    measure, said = Measure(), []
    first = this_host(measure, said.append)
    assert len(list(cache.glob("*.toml"))) == 1
    assert this_host(measure, said.append) == first
    assert find_cluster(HERE, measure, said.append) == first
    assert measure.calls == 1
    assert said == ["measuring this host, once: about 20 seconds"]


@pytest.mark.parametrize(
    "change",
    [
        lambda cluster: with_device(cluster, memory=cluster.memory + 1),
        lambda cluster: replace(
            cluster, groups=(replace(cluster.groups[0], cores_per_host=cluster.groups[0].cores_per_host + 1),)
        ),
        lambda cluster: with_device(cluster, kind="other"),
    ],
    ids=["memory", "cores", "kind"],
)
def test_measurements_of_other_hardware_are_not_used(change: Callable[[Cluster], Cluster]) -> None:
    cache_host(Measure(change)())
    assert cached_host() is None
    measure = Measure()
    this_host(measure, silent)
    assert measure.calls == 1


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text.replace("version = 1", "version = 99"),
        lambda text: text[: len(text) // 2],
        lambda text: text.replace("memory_bandwidth", "bandwidth_of_memory"),
        lambda _: "",
        lambda _: "\0",
    ],
    ids=["newer version", "cut off", "unknown key", "empty", "not TOML"],
)
def test_a_damaged_or_newer_cache_is_measured_again_and_replaced(cache: Path, damage: Callable[[str], str]) -> None:
    measure = Measure()
    this_host(measure, silent)
    (file,) = cache.glob("*.toml")
    text = file.read_text()
    damaged = damage(text)
    assert damaged != text
    file.write_text(damaged)
    assert cached_host() is None
    this_host(measure, silent)
    assert measure.calls == 2
    assert cached_host() is not None


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    measure = Measure()
    this_host(measure, silent)
    this_host(measure, silent)
    assert measure.calls == 2


def test_without_the_variable_the_cache_is_in_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    cache_host(Measure()())
    assert len(list((tmp_path / ".cache" / "onecurve").glob("*.toml"))) == 1


def test_a_cluster_is_found_by_name_by_file_or_as_it_is(tmp_path: Path) -> None:
    cluster = find_cluster("2x8xH100", refuse_to_measure, silent)
    assert (cluster.devices, cluster.device_kind) == (16, "cuda")
    write_toml(cluster, tmp_path / "cluster.toml")
    assert find_cluster(str(tmp_path / "cluster.toml"), refuse_to_measure, silent) == cluster
    assert find_cluster(cluster, refuse_to_measure, silent) is cluster


@pytest.mark.parametrize(
    ("wish", "message"),
    [("missing.toml", "missing.toml: no such file"), ("8xQ100", "'Q100' is not in the catalogue")],
)
def test_an_unknown_cluster_is_refused(wish: str, message: str) -> None:
    with pytest.raises(OnecurveError, match=message):
        find_cluster(wish, refuse_to_measure, silent)


def test_where_the_speeds_come_from() -> None:
    assert source_of("2x8xH100") == "the catalogue of devices; measure yours with onecurve probe"
    assert source_of("rack/cluster.toml") == "rack/cluster.toml"
    assert source_of(HERE) == "measured on this host"
    assert source_of(local_cluster()) == "the given Cluster"
