"""What a model's parts cost, as measure/ traces it and predict/ prices it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
FlopKind = Literal["matrix", "attention", "convolution"]
When = Literal["forward", "backward"]


@dataclass(frozen=True)
class Collective:
    """One exchange between the ranks of an axis."""

    kind: CollectiveKind
    size: int
    """Bytes of the whole tensor: what every rank has afterwards (all_gather) or before (the others)."""
    when: When
    axis: str = "tensor"


@dataclass(frozen=True)
class Load:
    """What one rank computes."""

    flops: Mapping[FlopKind, int] = field(default_factory=dict)
    """Two for each product that is added up; attention is counted in full, also where a mask leaves out half."""
    bytes_moved: int = 0
    """Bytes that operations read and write."""
    operations: int = 0
    """How many there are: each takes the host some time to start."""
    matmuls: int = 0
    """How many of them have FLOPs."""


@dataclass(frozen=True)
class Work:
    """What one rank does for one micro-batch, forward and backward."""

    forward: Load = field(default_factory=Load)
    backward: Load = field(default_factory=Load)
    collectives: tuple[Collective, ...] = ()

    @property
    def flops(self) -> int:
        return sum(self.forward.flops.values()) + sum(self.backward.flops.values())


@dataclass(frozen=True)
class ModuleProfile:
    """One module of the model, or, where `names` is empty, all that the model does outside its blocks."""

    names: tuple[str, ...]
    """Blocks that are alike, each of which costs this."""
    parameters: int
    """Elements, ties once."""
    trainable: int
    parameter_bytes: int
    trainable_bytes: int
    work: Work
    activation_bytes: int
    """Bytes of activations kept for backward, what it is given among them."""
    input_bytes: int
    """Bytes of the activation it is given: what a block keeps that recomputes all else."""
    matmul_output_bytes: int = 0
    """Bytes that its products give: what a block keeps beside that which recomputes all but them."""
    tensor_count: int = 0
    """How many its parameters are."""

    @property
    def count(self) -> int:
        return max(1, len(self.names))


@dataclass(frozen=True)
class Profile:
    """What a micro-batch of so many samples costs on one device."""

    samples: int
    blocks: tuple[ModuleProfile, ...]
    outside: ModuleProfile
    shared_activation_bytes: int
    """Bytes of activations that several blocks keep together, such as tables of positions."""
    optimizer_tensors: int
    """Of the size of the trained parameters; 0 where that is not known."""
    order: tuple[int, ...] = ()
    """Which of the blocks each one is like, as they follow each other; empty where that is not known."""

    @property
    def modules(self) -> tuple[ModuleProfile, ...]:
        return (*self.blocks, self.outside)

    @property
    def parameters(self) -> int:
        return sum(each.parameters * each.count for each in self.modules)

    @property
    def optimizer_bytes(self) -> int:
        return self.optimizer_tensors * sum(each.trainable_bytes * each.count for each in self.modules)

    @property
    def activation_bytes(self) -> int:
        return self.shared_activation_bytes + sum(each.activation_bytes * each.count for each in self.modules)

    @property
    def flops(self) -> int:
        return sum(each.work.flops * each.count for each in self.modules)

    def forward_flops(self, kind: FlopKind) -> int:
        return sum(each.work.forward.flops.get(kind, 0) * each.count for each in self.modules)
