"""What a job costs at a few points, from which predict/ tells what it costs at any other."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from onecurve.describe.plan import Precision
from onecurve.describe.profile import Profile


@dataclass(frozen=True)
class Trace:
    """The model computed in one precision."""

    small: Profile
    large: Profile
    """The same of twice as many samples."""
    tensor2: Mapping[bool, Profile] = field(default_factory=dict)
    """Of as many samples, what one of two tensor ranks does; by whether the sequence is cut between them too."""


Weight = tuple[float, float]
"""FLOPs and bytes."""


@dataclass(frozen=True)
class BlockChain:
    """The blocks in the order in which they run: what pipeline stages can be made of."""

    blocks: tuple[Weight, ...] = ()
    first: Weight = (0.0, 0.0)
    """What the first stage has beside its blocks: embeddings."""
    last: Weight = (0.0, 0.0)
    """The head, the loss."""
    kinds: tuple[int, ...] = ()
    """Which of the profile's blocks each of them is like; empty where the model could not be profiled."""


@dataclass(frozen=True)
class Timing:
    """One micro-batch of the model, as it ran on a device of the cluster that had nothing else to do."""

    precision: Precision
    threads: int
    samples: int
    forward: float
    backward: float
    """Seconds."""


@dataclass(frozen=True)
class Costs:
    traces: Mapping[Precision, Trace]
    global_batch: int
    steps: int
    block_chain: BlockChain = field(default_factory=BlockChain)
    tensor_degrees: tuple[int, ...] = ()
    """Over how many tensor ranks it can be cut, beside 1."""
    layouts: Mapping[str, str] = field(default_factory=dict)
    """How."""
    read_seconds_per_sample: float = 0.0
    """Seconds that a sample takes to be read; 0 where that is not known."""
    single_round: bool = False
    """Whether the numbers depend on how many rounds a step has, as batch norm's do: then it has one."""
    needs_full_parameters: bool = False
    """Whether the optimizer may need whole parameters: then nothing is cut or sharded."""
    timings: tuple[Timing, ...] = ()
    refused_axes: Mapping[str, str] = field(default_factory=dict)
    """Why it cannot be split along an axis."""
