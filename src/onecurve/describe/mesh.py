"""The device mesh: ranks arranged along six axes, outermost first. Pure arithmetic, identical on every rank."""

from dataclasses import dataclass, fields

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class Mesh:
    """The number of ranks along each axis. Rank 0 is at the origin; the last axis varies fastest."""

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    expert: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if min(self.pipeline, self.replicate, self.shard, self.context, self.expert, self.tensor) < 1:
            axis, degree = min(self.degrees.items(), key=lambda item: item[1])
            raise OnecurveError(f"the degree of {axis} must be at least 1, not {degree}")

    @property
    def degrees(self) -> dict[str, int]:
        """Axis → number of ranks along it."""
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def size(self) -> int:
        """Total number of ranks."""
        return self.pipeline * self.replicate * self.shard * self.context * self.expert * self.tensor

    @property
    def data(self) -> int:
        """Data-parallel degree: the number of ranks that the samples of a round are split over."""
        return self.replicate * self.shard

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the index of `rank` along each axis."""
        coordinates = {}
        for axis in reversed(AXES):
            rank, coordinates[axis] = divmod(rank, getattr(self, axis))
        return {axis: coordinates[axis] for axis in AXES}

    def ranks_along(self, rank: int, *axes: str) -> list[int]:
        """Return the ranks, in ascending order, whose coordinates differ from those of `rank` at most along `axes`."""
        coordinates, stride, ranks = self.coordinates(rank), 1, [rank]
        for axis in reversed(AXES):
            if axis in axes:
                first = -coordinates[axis] * stride
                ranks = [other + first + index * stride for index in range(getattr(self, axis)) for other in ranks]
            stride *= getattr(self, axis)
        return ranks

    def data_rank(self, rank: int) -> int:
        """Return the data-parallel rank of `rank`. All ranks of one model replica have the same one."""
        coordinates = self.coordinates(rank)
        return coordinates["replicate"] * self.shard + coordinates["shard"]


AXES: tuple[str, ...] = tuple(field.name for field in fields(Mesh))
