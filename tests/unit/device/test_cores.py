from hypothesis import given
from hypothesis import strategies as st

from onecurve.device.cores import _read_list, cores_of

TWO_NODES = [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_ranks_stay_within_a_node_and_share_no_core() -> None:
    assert [cores_of(rank, 2, 0, TWO_NODES) for rank in range(2)] == TWO_NODES
    assert cores_of(1, 4, 0, TWO_NODES) == [4, 6]
    assert cores_of(1, 2, 3, TWO_NODES) == [6, 1, 3]


def test_where_cores_do_not_suffice_nobody_is_tied() -> None:
    assert cores_of(0, 4, 0, [[0, 1]]) == []
    assert cores_of(0, 2, 2, [[0, 1]]) == []


@given(st.integers(1, 16), st.integers(1, 16))
def test_no_core_is_given_twice(ranks: int, threads: int) -> None:
    given_out = [core for rank in range(ranks) for core in cores_of(rank, ranks, threads, TWO_NODES)]
    assert len(given_out) == len(set(given_out))


def test_the_kernels_lists_are_read() -> None:
    assert _read_list("0-3,8\n") == [0, 1, 2, 3, 8]
    assert _read_list("\n") == []
