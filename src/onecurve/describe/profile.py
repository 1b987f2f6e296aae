"""Compute, memory and communication costs of modules: measure/ traces them, estimate/ turns them into time."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

CollectiveKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all"]
FlopKind = Literal["matrix", "attention", "convolution"]
Direction = Literal["forward", "backward"]


@dataclass(frozen=True)
class Collective:
    """One collective operation between the ranks of an axis."""

    kind: CollectiveKind
    size: int
    """Bytes of the full tensor: each rank's output of an all-gather, each rank's input of the other kinds."""
    when: Direction
    axis: str = "tensor"


@dataclass(frozen=True)
class ComputeLoad:
    """The computation of one rank in one direction."""

    flops: Mapping[FlopKind, int] = field(default_factory=dict)
    """FLOPs by kind; a multiply-add counts as two. Attention is counted without regard to a causal mask."""
    bytes_moved: int = 0
    """Bytes that operations read and write."""
    operations: int = 0
    """Number of operations; the host needs time to launch each of them."""
    matmuls: int = 0
    """Number of operations that have FLOPs."""


@dataclass(frozen=True)
class Work:
    """The computation and communication of one rank for one micro-batch."""

    forward: ComputeLoad = field(default_factory=ComputeLoad)
    backward: ComputeLoad = field(default_factory=ComputeLoad)
    collectives: tuple[Collective, ...] = ()

    @property
    def flops(self) -> int:
        return sum(self.forward.flops.values()) + sum(self.backward.flops.values())


@dataclass(frozen=True)
class ModuleProfile:
    """The costs of one block, or of everything outside the blocks if `names` is empty."""

    names: tuple[str, ...]
    """Names of the identical blocks; the profile describes each of them, not their sum."""
    parameters: int
    """Number of parameter elements; tied parameters count once."""
    trainable: int
    """Number of elements that require gradients."""
    parameter_bytes: int
    trainable_bytes: int
    work: Work
    activation_bytes: int
    """Bytes of activations saved for backward, including the module's input."""
    input_bytes: int
    """Bytes of the module's input: what full recomputation saves."""
    matmul_output_bytes: int = 0
    """Bytes of the outputs of matrix products and attention: what selective recomputation saves besides the input."""
    tensor_count: int = 0
    """Number of parameter tensors."""

    @property
    def count(self) -> int:
        """Number of identical modules; 1 for everything outside the blocks."""
        return max(1, len(self.names))


@dataclass(frozen=True)
class Profile:
    """The costs of one micro-batch of `samples` samples on one device."""

    samples: int
    blocks: tuple[ModuleProfile, ...]
    """One entry per kind of block."""
    outside: ModuleProfile
    """Everything outside the blocks."""
    shared_activation_bytes: int
    """Bytes of activations that several blocks share, such as position tables."""
    optimizer_tensors: int
    """Number of optimizer state tensors per trainable parameter, each of its size; 0 if unknown."""
    order: tuple[int, ...] = ()
    """For each block in execution order, the index of its kind in `blocks`; empty if unknown."""

    @property
    def modules(self) -> tuple[ModuleProfile, ...]:
        return (*self.blocks, self.outside)

    @property
    def parameters(self) -> int:
        return sum(module.parameters * module.count for module in self.modules)

    @property
    def optimizer_bytes(self) -> int:
        return self.optimizer_tensors * sum(module.trainable_bytes * module.count for module in self.modules)

    @property
    def activation_bytes(self) -> int:
        return self.shared_activation_bytes + sum(module.activation_bytes * module.count for module in self.modules)

    @property
    def flops(self) -> int:
        return sum(module.work.flops * module.count for module in self.modules)

    def forward_flops(self, kind: FlopKind) -> int:
        return sum(module.work.forward.flops.get(kind, 0) * module.count for module in self.modules)
