"""The order in which a rank searches the manifests of the saved ranks for the tensors it needs.

A rank reads manifests until it has found everything it needs. It starts with the manifests of the ranks at its own mesh
coordinates, in all replicas, and continues with ranks at coordinate 0 of some axes, because a tensor that is not split
along an axis is written by the first rank of that axis. If the plan has not changed, these are enough. Computing the
order is cheap compared with reading a file.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from onecurve.describe.mesh import AXES, Mesh


def manifest_search_order(saved: Mesh, now: Mesh, rank: int) -> list[int]:
    """Return all ranks of the `saved` mesh, most promising first, for `rank` of the mesh `now`."""
    axes = [axis for axis in AXES if axis != "replicate"]
    coordinates = now.coordinates(rank)
    ranks = np.arange(saved.size)
    shortest = np.full(saved.size, np.inf)
    relative = {axis: _coordinates_along(saved, axis, ranks) / saved.degrees[axis] for axis in axes}
    used_axes = [axis for axis in axes if saved.degrees[axis] > 1]
    for zeroed in itertools.chain.from_iterable(
        itertools.combinations(used_axes, count) for count in range(len(used_axes) + 1)
    ):
        distance = np.zeros(saved.size)
        for axis in axes:
            target = 0.0 if axis in zeroed else coordinates[axis] / now.degrees[axis]
            distance += np.abs(relative[axis] - target)
        shortest = np.minimum(shortest, distance)
    order: list[int] = np.argsort(shortest, kind="stable").tolist()
    return order


def _coordinates_along(mesh: Mesh, axis: str, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    stride = 1
    for inner_axis in reversed(AXES):
        if inner_axis == axis:
            return ranks // stride % mesh.degrees[axis]
        stride *= mesh.degrees[inner_axis]
    raise KeyError(axis)
