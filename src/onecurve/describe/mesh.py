"""The mesh: ranks laid out along six axes, outermost first. Pure arithmetic, the same on every rank."""

from dataclasses import dataclass, fields

from onecurve.describe.errors import OnecurveError


@dataclass(frozen=True)
class Mesh:
    """How many ranks lie along each axis. Rank 0 is at the origin; the last axis varies fastest."""

    pipeline: int = 1
    replicate: int = 1
    shard: int = 1
    context: int = 1
    expert: int = 1
    tensor: int = 1

    def __post_init__(self) -> None:
        if min(self.pipeline, self.replicate, self.shard, self.context, self.expert, self.tensor) < 1:
            axis, degree = min(self.degrees.items(), key=lambda each: each[1])
            raise OnecurveError(f"mesh: {axis} = {degree}, a degree is at least 1")

    @property
    def degrees(self) -> dict[str, int]:
        return {axis: getattr(self, axis) for axis in AXES}

    @property
    def size(self) -> int:
        return self.pipeline * self.replicate * self.shard * self.context * self.expert * self.tensor

    @property
    def data(self) -> int:
        """Over how many ranks the samples of a round are split."""
        return self.replicate * self.shard

    def coordinates(self, rank: int) -> dict[str, int]:
        place = {}
        for axis in reversed(AXES):
            rank, place[axis] = divmod(rank, getattr(self, axis))
        return {axis: place[axis] for axis in AXES}

    def groups(self, *axes: str) -> list[list[int]]:
        """The ranks that differ along these axes alone, for each place along the others."""
        found: dict[tuple[int, ...], list[int]] = {}
        for rank in range(self.size):
            place = self.coordinates(rank)
            found.setdefault(tuple(place[axis] for axis in AXES if axis not in axes), []).append(rank)
        return list(found.values())

    def data_rank(self, rank: int) -> int:
        """Which share of the round this rank takes; ranks that hold parts of one model copy take the same."""
        place = self.coordinates(rank)
        return place["replicate"] * self.shard + place["shard"]


AXES: tuple[str, ...] = tuple(field.name for field in fields(Mesh))
