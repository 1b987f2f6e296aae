"""What flows between the blocks of a model: where a pipeline can be cut, and what then crosses the cut."""

from dataclasses import dataclass
from typing import NamedTuple


class Source(NamedTuple):
    """One of the tensors that a block returns."""

    block: int
    tensor: int


@dataclass(frozen=True)
class Dataflow:
    """Blocks are in the order in which the model calls them. A consumer is a block, or, last, the model's output."""

    blocks: tuple[str, ...]
    units: tuple[str, ...]
    """Modules beside the blocks that hold parameters or buffers: embeddings, the last norm, the head."""
    sources: tuple[tuple[Source, ...], ...]
    """Of what blocks' tensors each consumer is made."""
    used: tuple[frozenset[str], ...]
    """Which units each consumer needs, directly or by way of other computation outside the blocks."""
    opened: frozenset[str] = frozenset()
    """Units whose parameters the model uses without calling them."""

    def crossing(self, end: int) -> tuple[Source, ...]:
        """What blocks before `end` have made and consumers from there on need."""
        needed = {source for consumer in self.sources[end:] for source in consumer}
        return tuple(sorted(source for source in needed if source.block < end))

    def needed(self, begin: int, end: int) -> frozenset[str]:
        """The units that a stage of these blocks needs; the last stage also makes the model's output."""
        last = end + 1 if end == len(self.blocks) else end
        return frozenset().union(*self.used[begin:last])
