"""Ranks that create only their own process groups do not wait for each other forever."""

from harness import JOBS, torchrun


def test_many_meshes_in_one_world_are_created_without_deadlock() -> None:
    finished = torchrun(4, str(JOBS / "many_meshes.py"), timeout=120)
    assert finished.returncode == 0, finished.stderr
