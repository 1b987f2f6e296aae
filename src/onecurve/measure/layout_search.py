"""Derives tensor-parallel layouts of a model's parameters from its data flow.

Nothing is known about the names or classes of layers. A module that has a matrix is an *owner*; owners that are called
with the same activation (q, k and v) form one *group*. If the matrices of one group are sharded so that their outputs
are sharded (column-parallel), and those of a later group so that they take a sharded input (row-parallel), both matrix
products get smaller for the price of one all-reduce. Every such pair is tried: DTensor's sharding propagation over a
fake process group shows which collectives it really needs, and a price ranks the pairs. For attention and MLPs the best
pairs are the known ones: columns, then rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any, Literal

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, distribute_tensor
from torch.utils import _pytree as pytree

from onecurve.describe.layout import Layout
from onecurve.describe.profile import Collective, Work
from onecurve.measure.module_calls import ModuleCall, snapshot
from onecurve.measure.op_counter import OpCounter
from onecurve.measure.profiler import BlockRun
from onecurve.measure.refusal import refusal_of
from onecurve.measure.saved_tensors import SavedTensors
from onecurve.model.data_dependent import DataDependentFallback

Layouts = dict[str, Layout]
SplitContext = Callable[[nn.Module, Mapping[str, str]], AbstractContextManager[None]]
"""Returns a context in which a module's parameters are sharded by these layouts, as apply/ shards them."""
CollectivePrice = Callable[[Collective], float]
OutputKind = Literal["sharded", "partial", "other"]
"""What a module with a sharded matrix returns: a sharded output, partial sums, or neither without communication."""

_MAX_PARTS = 4
"""Most matrices that are assumed to be fused into one (q, k and v are 3)."""
_MAX_FLOPS_OVER_FORWARD = 4
"""Upper bound of the FLOPs of forward and backward together, as a multiple of those of forward."""
_MIN_GROUP_FRACTION = 0.05
"""Matrices with fewer parameters than this fraction of the block's largest group are not worth sharding."""
_MIN_TABLE_FRACTION = 0.25
"""Tables (embeddings, heads) with fewer parameters than this fraction of the largest block are not worth sharding."""


@dataclass
class MatrixOwner:
    """A module that has a matrix, with the layouts that work for it; parameter names include the module's name."""

    name: str
    columns: list[Layouts] = field(default_factory=list)
    """Column-parallel layouts: the output is sharded."""
    rows: list[Layouts] = field(default_factory=list)
    """Row-parallel layouts: the input may be sharded, and the output is a partial sum."""


@dataclass(frozen=True, order=True)
class _Pair:
    """A column-parallel and a row-parallel group of a block; the cheapest pair comes first in order."""

    price: float
    """Price of communication per FLOP saved; a lower bound until it is `exact`."""
    first: int
    second: int
    exact: bool = False
    layouts: Layouts = field(default_factory=dict, compare=False)


class LayoutSearch:
    """Finds tensor-parallel layouts, and traces what one rank does under given ones."""

    def __init__(
        self,
        mesh: DeviceMesh,
        mode: FakeTensorMode,
        split: SplitContext,
        price: CollectivePrice,
        activation: Placement | None = None,
    ) -> None:
        """`activation`: placement of the activations between blocks, replicated by default."""
        self._mesh, self._mode, self._split, self._price = mesh, mode, split, price
        self._activation = [activation or Replicate()]
        self.refusal = ""
        """Why the latest trial failed; empty if none did. Says which operation of which module refused."""

    def block_layouts(self, block: ModuleCall, inside: Sequence[ModuleCall]) -> Layouts:
        """Layouts of a block's parameters. `inside`: the calls within the block, with names relative to it."""
        self.refusal = ""
        groups = [[self._owner(call) for call in group] for group in _large_groups(inside)]
        groups = [[owner for owner in group if owner.columns or owner.rows] for group in groups]
        unsharded = self._try(block, {})
        if unsharded is None:  # the block does not run on DTensors at all
            return {}
        forward = sum(unsharded.work.forward.flops.values())
        pairs = []
        for first, columns in enumerate(groups):
            for second in range(first + 1, len(groups)):
                for layouts in _pair_layouts(columns, groups[second]):
                    run = self._try(block, layouts, forward_only=True)
                    if run is not None and (saved := forward - run.work.flops) > 0:
                        lowest = self._total_price(run.work) / (_MAX_FLOPS_OVER_FORWARD * saved)
                        pairs.append(_Pair(lowest, first, second, layouts=layouts))
        return self._choose_disjoint(pairs, block, unsharded.work.flops)

    def _choose_disjoint(self, pairs: list[_Pair], block: ModuleCall, flops: int) -> Layouts:
        """Choose pairs by increasing price, such that no group is in two of them.

        Backward is traced only for pairs whose lower bound says that they may be the cheapest. `flops`: those of the
        unsharded block, forward and backward.
        """
        used: set[int] = set()
        chosen: Layouts = {}
        heapify(pairs)
        while pairs:
            pair = heappop(pairs)
            if {pair.first, pair.second} & used:
                continue
            if pair.exact:
                used |= {pair.first, pair.second}
                chosen |= pair.layouts
            elif (run := self._try(block, pair.layouts)) is not None and run.work.flops < flops:
                price = self._total_price(run.work) / (flops - run.work.flops)
                heappush(pairs, replace(pair, price=price, exact=True))
        return chosen

    def table_layouts(
        self, model: nn.Module, outside: Sequence[ModuleCall], largest: int, run: Callable[[], Tensor]
    ) -> Layouts:
        """Layouts of large matrices outside the blocks: embeddings and the head.

        `outside`: the calls outside the blocks; `largest`: parameters of the largest block; `run`: runs the model and
        returns its loss. An embedding is sharded so that it returns partial sums, the head so that its classes are
        sharded. A layout is accepted if the whole model then needs all-reduces only, and no all-gather.
        """
        chosen: Layouts = {}
        for call in outside:
            matrices = [parameter for parameter in call.module.parameters(recurse=False) if parameter.dim() == 2]
            if not matrices or call.first_tensor is None or matrices[0].numel() < _MIN_TABLE_FRACTION * largest:
                continue
            owner = self._owner(call)
            for layouts in owner.columns if call.first_tensor.is_floating_point() else owner.rows:
                split = self.run_split_model(model, _texts(chosen | layouts), run)
                if split is not None and all(each.kind == "all_reduce" for each in split.work.collectives):
                    chosen |= layouts
                    break
        return chosen

    def run_split_model(
        self, model: nn.Module, layouts: Mapping[str, str], run: Callable[[], Tensor]
    ) -> BlockRun | None:
        """Trace one rank's forward and backward of the model under these layouts; None if it does not run so."""
        count, selection = OpCounter(self._mode), DataDependentFallback()
        try:
            with self._split(model, layouts), count, selection:
                saved = SavedTensors(model)
                with saved.hooks():
                    loss = run()
                count.when = "backward"
                (loss.full_tensor() if isinstance(loss, DTensor) else loss).backward()  # type: ignore[no-untyped-call]
        except Exception as error:  # the model may not run under these layouts, for any reason of its own
            self.refusal = refusal_of(error, model)
            return None
        if selection.selects_from_sharded:
            self.refusal = (
                f"operation {selection.selects_from_sharded} selects elements by their values, so the shape of what it "
                "returns would differ between tensor ranks"
            )
            return None
        return BlockRun(count.work, saved.nbytes, count.matmul_output_bytes)

    def run_split_block(self, block: ModuleCall, layouts: Mapping[str, str]) -> BlockRun | None:
        """Trace one rank's forward and backward of a block under these layouts; None if it does not run so."""
        return self._try(block, {name: Layout.parse(text) for name, text in layouts.items()})

    def _total_price(self, work: Work) -> float:
        return sum(map(self._price, work.collectives))

    def _try(self, call: ModuleCall, layouts: Layouts, forward_only: bool = False) -> BlockRun | None:
        """Trace the call under these layouts; None if DTensor cannot run it."""
        arguments, kwargs, activation = self._distributed(call)
        count = OpCounter(self._mode)
        try:
            with self._split(call.module, _texts(layouts)), count, DataDependentFallback():
                saved = SavedTensors(call.module)
                with saved.hooks():
                    outputs = pytree.tree_leaves(call.module(*arguments, **kwargs))
                floating = [leaf for leaf in outputs if isinstance(leaf, Tensor) and leaf.is_floating_point()]
                if not floating or not isinstance(floating[0], DTensor):
                    self.refusal = "the block does not return a distributed tensor"
                    return None
                output = floating[0]
                output = output.redistribute(placements=self._activation)
                saved.discard_chained_outputs(activation, [output])
                if forward_only:
                    return BlockRun(count.work, saved.nbytes, count.matmul_output_bytes)
                count.when = "backward"
                output.backward(output.detach())  # type: ignore[no-untyped-call]
                if isinstance(activation.grad, DTensor):
                    activation.grad.redistribute(placements=self._activation)
                for parameter in call.module.parameters():
                    _reduce_gradient(parameter)
        except Exception as error:  # the block may not run under these layouts, for any reason of its own
            self.refusal = refusal_of(error, call.module)
            return None
        return BlockRun(count.work, saved.nbytes, count.matmul_output_bytes)

    def _distributed(self, call: ModuleCall) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
        """The call's arguments with the first tensor as a DTensor, and that tensor."""
        leaves, structure = pytree.tree_flatten(snapshot((call.arguments, call.kwargs)))
        leaves = [_detached(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
        index = next(number for number, leaf in enumerate(leaves) if isinstance(leaf, Tensor))
        activation = distribute_tensor(leaves[index].detach(), self._mesh, self._activation, src_data_rank=None)
        leaves[index] = activation.requires_grad_(activation.is_floating_point())
        arguments, kwargs = pytree.tree_unflatten(leaves, structure)
        return arguments, kwargs, activation

    def _owner(self, call: ModuleCall) -> MatrixOwner:
        """Try to shard the module's matrix along each dimension, alone, and classify what comes out."""
        owner = MatrixOwner(call.name)
        parameters = dict(call.module.named_parameters(recurse=False))
        matrix = next((name for name, parameter in parameters.items() if parameter.dim() == 2), None)
        if matrix is None:
            return owner
        vectors = [name for name, parameter in parameters.items() if parameter.dim() == 1]
        for dim, length in enumerate(parameters[matrix].shape):
            other_dim = parameters[matrix].numel() // length
            for parts in sorted({1, *(n for n in range(2, _MAX_PARTS + 1) if length % (n * other_dim) == 0)}):
                for sharded_vectors in (vectors, []) if vectors else ([],):
                    layouts = {matrix: Layout(dim, parts), **{name: Layout(0, parts) for name in sharded_vectors}}
                    if self._classify(owner, call, parameters, layouts):
                        break
        return owner

    def _classify(
        self, owner: MatrixOwner, call: ModuleCall, parameters: Mapping[str, Tensor], layouts: Layouts
    ) -> bool:
        """Add the layouts to the owner's columns or rows; return False if they do not work."""
        degree = self._mesh.size()
        if not all(layout.divides(tuple(parameters[name].shape), degree) for name, layout in layouts.items()):
            return False
        kind = self._output_kind(call, layouts)
        full_names = {f"{owner.name}.{name}" if owner.name else name: layout for name, layout in layouts.items()}
        if kind == "sharded":
            owner.columns.append(full_names)
        elif kind == "partial" and all(layout.parts == 1 for layout in layouts.values()):
            owner.rows.append(full_names)
        return kind != "other"

    def _output_kind(self, call: ModuleCall, layouts: Layouts) -> OutputKind:
        """What a module with these layouts returns for an unsharded input."""
        arguments, kwargs, _ = self._distributed(call)
        kinds: list[OutputKind] = []

        def record_placement(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, DTensor):
                placement = output.placements[0]
                kinds.append(
                    "partial" if placement.is_partial() else "other" if placement.is_replicate() else "sharded"
                )

        handle = call.module.register_forward_hook(record_placement)
        count = OpCounter(self._mode)
        try:
            with self._split(call.module, _texts(layouts)), count, DataDependentFallback():
                call.module(*arguments, **kwargs)
                communicates = any(collective.kind != "all_reduce" for collective in count.collectives)
        except Exception as error:  # the module may not run under these layouts, for any reason of its own
            self.refusal = refusal_of(error, call.module)
            return "other"
        finally:
            handle.remove()
        return kinds[0] if kinds and not communicates else "other"


def _detached(tensor: Tensor) -> Tensor:
    """The tensor without the graph of the model's forward, which a trial must not run backward through."""
    return tensor.detach().requires_grad_(tensor.requires_grad)


def _reduce_gradient(parameter: Tensor) -> None:
    """Reduce the gradient of a replicated parameter: with a sharded sequence each rank has a partial sum of it."""
    gradient = parameter.grad
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
        gradient.redistribute(placements=parameter.placements)


def _texts(layouts: Layouts) -> dict[str, str]:
    return {name: str(layout) for name, layout in layouts.items()}


def matrix_groups(calls: Sequence[ModuleCall]) -> list[list[ModuleCall]]:
    """Calls of modules that have a matrix of their own, in model order, grouped by the activation they take."""
    groups: dict[int, list[ModuleCall]] = {}
    for call in calls:
        has_matrix = any(parameter.dim() == 2 for parameter in call.module.parameters(recurse=False))
        if call.first_tensor is not None and has_matrix:
            groups.setdefault(id(call.first_tensor), []).append(call)
    return list(groups.values())


def _large_groups(calls: Sequence[ModuleCall]) -> list[list[ModuleCall]]:
    """The groups that are worth a split: the many small matrices of low-rank adapters are not, and take long to try."""
    groups = matrix_groups(calls)
    sizes = [sum(p.numel() for call in group for p in call.module.parameters(recurse=False)) for group in groups]
    smallest = _MIN_GROUP_FRACTION * max(sizes, default=0)
    return [group for group, size in zip(groups, sizes, strict=True) if size >= smallest]


def _pair_layouts(columns: Sequence[MatrixOwner], rows: Sequence[MatrixOwner]) -> list[Layouts]:
    """Combinations with one group column-parallel and the other row-parallel.

    All owners of a group take their n-th layout together, so that not every combination within a group is tried.
    """
    combinations = []
    for n in range(max((len(owner.columns) for owner in columns), default=0)):
        for m in range(max((len(owner.rows) for owner in rows), default=0)):
            if all(len(owner.columns) > n for owner in columns) and all(len(owner.rows) > m for owner in rows):
                chosen = [owner.columns[n] for owner in columns] + [owner.rows[m] for owner in rows]
                combinations.append({name: layout for layouts in chosen for name, layout in layouts.items()})
    return combinations


def pattern(block: str) -> str:
    """Replace the numbers in a block's name by `*`: `blocks.3` → `blocks.*`."""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", block)
