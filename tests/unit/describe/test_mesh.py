import pytest
from hypothesis import given
from hypothesis import strategies as st

from onecurve.describe.errors import OnecurveError
from onecurve.describe.mesh import AXES, Mesh

MESH = Mesh(pipeline=2, replicate=2, shard=3, tensor=2)


def test_the_last_axis_varies_fastest() -> None:
    assert MESH.size == 24
    assert MESH.coordinates(1) == {"pipeline": 0, "replicate": 0, "shard": 0, "context": 0, "expert": 0, "tensor": 1}
    # 23 = 12 · 1 + 6 · 1 + 2 · 2 + 1
    assert MESH.coordinates(23) == {"pipeline": 1, "replicate": 1, "shard": 2, "context": 0, "expert": 0, "tensor": 1}


def test_data_ranks_count_shards_within_replicas() -> None:
    assert MESH.data == 6
    assert [MESH.data_rank(rank) for rank in range(0, 12, 2)] == [0, 1, 2, 3, 4, 5]
    assert MESH.data_rank(23) == MESH.data_rank(10) == 5


def test_ranks_along_one_axis_and_along_two() -> None:
    mesh = Mesh(replicate=2, shard=2, tensor=2)
    assert mesh.ranks_along(5, "tensor") == [4, 5]
    assert mesh.ranks_along(5, "replicate") == [1, 5]
    assert mesh.ranks_along(5, "replicate", "shard") == [1, 3, 5, 7]
    assert mesh.ranks_along(5) == [5]


@given(st.builds(Mesh, **{axis: st.integers(1, 3) for axis in AXES}), st.sets(st.sampled_from(AXES)), st.data())
def test_ranks_along_axes_are_those_with_the_same_other_coordinates(mesh: Mesh, axes: set[str], data) -> None:
    rank = data.draw(st.integers(0, mesh.size - 1))

    def fixed(other: int) -> list[int]:
        return [index for axis, index in mesh.coordinates(other).items() if axis not in axes]

    assert mesh.ranks_along(rank, *axes) == [other for other in range(mesh.size) if fixed(other) == fixed(rank)]


@pytest.mark.parametrize("axis", AXES)
def test_a_degree_below_one_is_refused_by_name(axis: str) -> None:
    with pytest.raises(OnecurveError, match=f"degree of {axis} must be at least 1"):
        Mesh(**{axis: 0})
