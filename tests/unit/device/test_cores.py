from hypothesis import given
from hypothesis import strategies as st

from onecurve.device.cores import _read_list, cores_near, cores_of

TWO_NODES = [[0, 2, 4, 6], [1, 3, 5, 7]]


def test_ranks_stay_within_a_numa_node_and_share_no_core() -> None:
    assert [cores_of(rank, 2, 0, TWO_NODES) for rank in range(2)] == TWO_NODES
    assert cores_of(1, 4, 0, TWO_NODES) == [4, 6]
    assert cores_of(1, 2, 3, TWO_NODES) == [6, 1, 3]


def test_no_rank_is_pinned_if_there_are_too_few_cores() -> None:
    assert cores_of(0, 4, 0, [[0, 1]]) == []
    assert cores_of(0, 2, 2, [[0, 1]]) == []


@given(st.integers(1, 16), st.integers(1, 16))
def test_no_core_is_assigned_twice(ranks: int, threads: int) -> None:
    assigned = [core for rank in range(ranks) for core in cores_of(rank, ranks, threads, TWO_NODES)]
    assert len(assigned) == len(set(assigned))


def test_core_lists_of_the_kernel_are_parsed() -> None:
    assert _read_list("0-3,8\n") == [0, 1, 2, 3, 8]
    assert _read_list("\n") == []


def test_ranks_are_near_their_devices() -> None:
    nodes = {0: [0, 2, 4, 6], 3: [1, 3, 5, 7]}
    assert [cores_near(rank, [3, 3, 0, 3], nodes) for rank in range(4)] == [[1], [3], [0, 2, 4, 6], [5]]
    assert cores_near(0, [1], nodes) == []
    assert cores_near(0, [0] * 5, nodes) == []
