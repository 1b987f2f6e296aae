"""Kills by the kernel for want of memory, as the files of both versions of control groups tell them."""

from pathlib import Path

import pytest

from onecurve.device.kernel_kills import KernelKills, kernel_kills


@pytest.mark.parametrize(
    ("membership", "file", "content"),
    [
        ("0::/job/7\n", "sys/fs/cgroup/job/7/memory.events", "low 0\noom 3\noom_kill 2\n"),
        ("4:memory:/job\n1:cpu:/\n0::/\n", "sys/fs/cgroup/memory/job/memory.oom_control", "under_oom 0\noom_kill 2\n"),
        ("4:memory:/elsewhere\n", "proc/vmstat", "nr_free 10\noom_kill 2\n"),
    ],
)
def test_the_counter_is_found(membership: str, file: str, content: str, tmp_path: Path) -> None:
    for path, text in (("proc/self/cgroup", membership), (file, content)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    assert kernel_kills(tmp_path) == 2


def test_without_any_counter_there_were_none(tmp_path: Path) -> None:
    assert kernel_kills(tmp_path) == 0


def test_a_kill_explains_one_process_for_some_seconds() -> None:
    now, kills = [0.0], [7]
    watch = KernelKills(lambda: kills[0], lambda: now[0])
    assert not watch.explain()
    kills[0] = 9
    watch.look()
    now[0] = 10.0
    assert watch.explain()
    assert watch.explain()
    assert not watch.explain(), "a third process was killed by someone else"
    kills[0] = 10
    watch.look()
    now[0] = 26.0
    assert not watch.explain()
