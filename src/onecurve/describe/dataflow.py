"""The data flow between the blocks of a model: which tensors and modules each pipeline stage needs."""

from dataclasses import dataclass
from typing import NamedTuple


class BlockOutput(NamedTuple):
    """One of the tensors that a block returns."""

    block: int
    """Index of the block in `Dataflow.blocks`."""
    tensor: int
    """Index among the tensors that the block returns."""


@dataclass(frozen=True)
class Dataflow:
    """The blocks in the order in which the model calls them, and what each of them depends on.

    A consumer is a block or the model's output; the output is the last consumer.
    """

    blocks: tuple[str, ...]
    units: tuple[str, ...]
    """Modules outside the blocks that own parameters or buffers: embeddings, the final norm, the head."""
    sources: tuple[tuple[BlockOutput, ...], ...]
    """For each consumer, the block outputs that its input is computed from."""
    used: tuple[frozenset[str], ...]
    """For each consumer, the units that it depends on, directly or through computation outside the blocks."""
    units_used_without_call: frozenset[str] = frozenset()
    """Units whose parameters the model uses without calling the unit."""

    def tensors_crossing(self, end: int) -> tuple[BlockOutput, ...]:
        """Return the outputs of blocks before `end` that consumers from `end` on need."""
        outputs = {output for consumer in self.sources[end:] for output in consumer}
        return tuple(sorted(output for output in outputs if output.block < end))

    def units_needed(self, begin: int, end: int) -> frozenset[str]:
        """Return the units that a stage of blocks [begin, end) needs; the last stage also computes the output."""
        last = end + 1 if end == len(self.blocks) else end
        return frozenset().union(*self.used[begin:last])
