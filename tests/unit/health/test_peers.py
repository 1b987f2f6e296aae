"""Hosts meet in a folder, compare themselves with two others, and leave nothing behind."""

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from threading import Thread

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


def test_hosts_that_meet_elsewhere_need_no_common_folder(tmp_path: Path) -> None:
    (only,) = peer_checks(tmp_path, 2, "127.0.0.1", {}, 0.0, lambda _: None, folder_needed=False)
    assert only.state == "note"
    assert "share no folder" in only.fix


def test_a_port_that_closes_the_connection_is_a_problem(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        Thread(target=lambda: listener.accept()[0].close(), daemon=True).start()
        other = peers.Peer("other", "a", "127.0.0.1", listener.getsockname()[1], {})
        (tmp_path / ".doctor-host-other.json").write_text(json.dumps(asdict(other)))
        (tmp_path / ".doctor-done-other").touch()
        *_, last = check(tmp_path, 2, {})
    assert (last.name, last.state) == ("connection to a", "problem")


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
