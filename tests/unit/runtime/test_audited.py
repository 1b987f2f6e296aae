"""Who recomputes whose share."""

from onecurve.describe.mesh import Mesh
from onecurve.runtime.audited import machines_of_data_ranks, partners


def test_a_ring_goes_through_equal_machines_and_others_recompute_their_own() -> None:
    assert partners(["a", "a", "a"]) == [1, 2, 0]
    assert partners(["a", "b", "a", "b", "c"]) == [2, 3, 0, 1, 4]
    assert partners(["a"]) == [0]


def test_a_share_is_computed_by_all_ranks_along_other_axes() -> None:
    mesh = Mesh(replicate=2, tensor=2)
    assert partners(machines_of_data_ranks(mesh, ["a", "b", "a", "b"])) == [1, 0]
    assert partners(machines_of_data_ranks(mesh, ["a", "b", "b", "b"])) == [0, 1]
