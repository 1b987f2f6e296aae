"""In which order to look through the ranks of a saved world for what a rank of this one needs.

Manifests are read until everything wanted is found. The first looked at are those of the same place in the mesh, all
its copies, then the first ranks along some of the axes, which wrote what is whole along them: where the plan has not
changed, that is enough. The arithmetic is cheap; each manifest that need not be read is a file less.
"""

import itertools

import numpy as np
from numpy.typing import NDArray

from onecurve.describe.mesh import AXES, Mesh


def manifest_search_order(saved: Mesh, now: Mesh, rank: int) -> list[int]:
    """All ranks of the saved mesh, the likeliest first."""
    axes = [axis for axis in AXES if axis != "replicate"]
    place = now.coordinates(rank)
    ranks = np.arange(saved.size)
    far = np.full(saved.size, np.inf)
    relative = {axis: _places(saved, axis, ranks) / saved.degrees[axis] for axis in axes}
    cut = [axis for axis in axes if saved.degrees[axis] > 1]
    for zeroed in itertools.chain.from_iterable(itertools.combinations(cut, n) for n in range(len(cut) + 1)):
        distance = np.zeros(saved.size)
        for axis in axes:
            target = 0.0 if axis in zeroed else place[axis] / now.degrees[axis]
            distance += np.abs(relative[axis] - target)
        far = np.minimum(far, distance)
    order: list[int] = np.argsort(far, kind="stable").tolist()
    return order


def _places(mesh: Mesh, axis: str, ranks: NDArray[np.int64]) -> NDArray[np.int64]:
    inner = 1
    for each in reversed(AXES):
        if each == axis:
            return ranks // inner % mesh.degrees[each]
        inner *= mesh.degrees[each]
    raise KeyError(axis)
