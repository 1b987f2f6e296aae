"""The costs of a job, measured at a few points from which estimate/ extrapolates to any plan."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onecurve.describe.changed_buffers import ChangedBuffers, refusal_of_mesh, refusal_of_whole
from onecurve.describe.mesh import Mesh
from onecurve.describe.plan import Precision
from onecurve.describe.profile import Profile
from onecurve.describe.table_use import TableUse


@dataclass(frozen=True)
class CostTrace:
    """Profiles of the model in one precision."""

    small: Profile
    large: Profile
    """Profile of a micro-batch with twice as many samples as `small`."""
    tensor2: Profile | None = None
    """Profile of one rank at tensor=2 with the samples of `large`; None if the model cannot be split so."""
    sequence2: Profile | None = None
    """The same with sequence parallelism."""

    def split_in_two(self, sequence: bool) -> Profile | None:
        """The profile of one rank at tensor=2, with or without sequence parallelism."""
        return self.sequence2 if sequence else self.tensor2


BlockWeight = tuple[float, float]
"""Compute cost (FLOPs or relative time) and memory in bytes."""


@dataclass(frozen=True)
class BlockChain:
    """The blocks in the order in which they run, with their costs. Pipeline stages are consecutive parts of it."""

    blocks: tuple[BlockWeight, ...] = ()
    first: BlockWeight = (0.0, 0.0)
    """Additional cost of the first stage: the embeddings."""
    last: BlockWeight = (0.0, 0.0)
    """Additional cost of the last stage: the head and the loss."""
    kinds: tuple[int, ...] = ()
    """For each block, the index of its kind in `Profile.blocks`; empty if the model could not be profiled."""


@dataclass(frozen=True)
class Timing:
    """Measured time of one micro-batch of the model on an otherwise idle device of the cluster."""

    precision: Precision
    threads: int
    samples: int
    forward: float
    """Seconds of the forward pass."""
    backward: float
    """Seconds of the backward pass."""
    compiled: bool = False
    """True if the blocks were compiled."""


@dataclass(frozen=True)
class Tokens:
    """The tokens of a sample."""

    per_sample: int
    """Tokens per sample, padding included."""
    counted_in: str
    """How the tokens were recognized, such as `the length of input_ids`."""


@dataclass(frozen=True)
class JobCosts:
    """All that the planner knows about a job."""

    traces: Mapping[Precision, CostTrace]
    global_batch: int
    steps: int
    block_chain: BlockChain = field(default_factory=BlockChain)
    tensor_degrees: tuple[int, ...] = ()
    """Supported tensor-parallel degrees above 1."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """Tensor-parallel layouts of the parameters: name pattern → layout in text form."""
    read_seconds_per_sample: float = 0.0
    """Seconds to read one sample; 0 if unknown."""
    forward_passes: int = 1
    """Forward passes of a round; 2 if the loss is one over the whole batch."""
    has_batch_norm: bool = False
    syncs_batch_norm: bool = False
    """True if batch norm takes its statistics over all data-parallel ranks."""
    changed_buffers: ChangedBuffers = field(default_factory=ChangedBuffers)
    """The buffers that forward changes, besides batch norm's."""
    averages_buffers: bool = False
    """True if the job averages those that depend on the data over the data-parallel ranks."""
    needs_full_parameters: bool = False
    """True if the optimizer may need unsharded parameters; `shard` and `tensor` are then excluded."""
    timings: tuple[Timing, ...] = ()
    tokens: Tokens | None = None
    """The tokens of a sample, or None if the samples are not known to be sequences of tokens."""
    snapshots: int = 0
    """Copies of its part of the training state that each rank keeps in host memory."""
    tables: tuple[TableUse, ...] = ()
    """How the model's embedding tables are used, as far as they were sampled."""
    has_row_servers: bool = False
    """True if rows of embedding tables may be on servers."""
    kept_whole: str = ""
    """Why every rank must hold the parameters as the constructor made them; empty if it need not."""
    refused_axes: Mapping[str, str] = field(default_factory=dict)
    """Axes along which the model cannot be split, each with the reason."""

    @property
    def single_round(self) -> bool:
        """True if results depend on the number of rounds per step; every step then has one round."""
        return self.has_batch_norm or self.changed_buffers.depends_on_rounds

    def refusal_of(self, mesh: Mesh) -> str:
        """Say why the model's parameters and buffers do not allow a mesh; empty if they do."""
        return refusal_of_whole(self.kept_whole, mesh) or refusal_of_mesh(
            self.changed_buffers, mesh, self.averages_buffers, self.syncs_batch_norm
        )
