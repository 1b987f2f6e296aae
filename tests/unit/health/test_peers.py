"""Hosts meet in a folder, compare themselves with two others, and leave nothing behind."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from onecurve.describe.health import HealthCheck
from onecurve.health import peers
from onecurve.health.peers import peer_checks


def check(folder: Path, hosts: int, versions: dict[str, str], patience: float = 20.0) -> list[HealthCheck]:
    return list(peer_checks(folder, hosts, "127.0.0.1", versions, patience, lambda _: None))


def test_three_hosts_find_each_other(tmp_path: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: check(tmp_path, 3, {"torch": "2.13"}), range(3)))
    for checks in found:
        assert all(each.state == "ok" for each in checks), checks
        assert checks[0].text.startswith("3 of 3 hosts see")
        assert 2 <= len(checks) <= 3  # itself is left out
    assert not list(tmp_path.iterdir())


def test_another_version_is_named_on_both_sides(tmp_path: Path) -> None:
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda version: check(tmp_path, 2, {"torch": version}), ("2.13", "2.12")))
    for checks, (here, there) in zip(found, (("2.13", "2.12"), ("2.12", "2.13")), strict=True):
        (problem,) = [each for each in checks if each.state == "problem"]
        assert problem.text == f"torch {here} here, {there} there"


def test_a_host_that_does_not_come(tmp_path: Path) -> None:
    first, *others = check(tmp_path, 2, {}, patience=0.0)
    assert first.state == "problem"
    assert "the folder is not shared" in first.fix
    assert not others


def test_what_a_killed_check_has_left_is_removed(tmp_path: Path) -> None:
    old = tmp_path / ".doctor-host-old.json"
    old.write_text('{"name": "old", "host": "a", "address": "127.0.0.1", "port": 1, "versions": {}}')
    os.utime(old, (0, 0))
    first, *_ = check(tmp_path, 2, {}, patience=0.0)
    assert first.text.startswith("1 of 2 hosts")
    assert not list(tmp_path.iterdir())


def test_clocks_that_differ(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(peers, "_CLOCK_SECONDS", -1.0)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda _: check(tmp_path, 2, {}), range(2)))
    assert all(checks[-1].fix.startswith("synchronize the clocks") for checks in found)
