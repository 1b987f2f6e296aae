"""Operations on sharded tensors compute what they compute on full ones, or raise."""

from harness import JOBS, torchrun


def test_operations_on_sharded_tensors_equal_those_on_full_tensors() -> None:
    ended = torchrun(2, str(JOBS / "sharded_operations.py"))
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip().endswith("0 of 60 cases failed"), ended.stdout
