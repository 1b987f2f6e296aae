"""How a model's parameters can lie along the tensor axis, found from its data flow.

Nothing is known of layers' names or kinds. Modules that hold a matrix are *owners*; owners that are given the same
activation (q, k and v) are one *group*. Cutting the matrix of one group so that its output comes out cut, and that of a
later one so that it takes a cut input, halves both products at the price of one sum: DTensor's propagation over a
pretended mesh tells which collectives such a pair really costs, and a price ranks what was tried. In attention and
MLPs the best pairs are the known ones: columns into rows.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from heapq import heapify, heappop, heappush
from typing import Any

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
from onecurve.measure.saved_tensors import SavedTensors

Layouts = dict[str, Layout]
SplitContext = Callable[[nn.Module, Mapping[str, str]], AbstractContextManager[None]]
"""Holds a module's parameters cut along the axis by these layouts, as apply/ would."""
CollectivePrice = Callable[[Collective], float]

_MOST_PARTS = 4
_TIMES = 4  # what forward and backward compute at most, in times forward
_LARGE = 0.25  # of the largest block; below that a table is not worth an exchange


@dataclass
class MatrixOwner:
    """A module that holds a matrix, and how each of its dimensions may be cut."""

    name: str
    columns: list[Layouts] = field(default_factory=list)
    """Ways to cut it so that its output is cut."""
    rows: list[Layouts] = field(default_factory=list)
    """Ways to cut it so that it takes a cut input, or gives partial sums."""


@dataclass(frozen=True, order=True)
class _Pair:
    """Two groups of a block, and how to cut them."""

    price: float
    """What is sent for each FLOP less; at least, until it is known."""
    first: int
    second: int
    known: bool = False
    layouts: Layouts = field(default_factory=dict, compare=False)


class LayoutSearch:
    """Finds the layouts of a block."""

    def __init__(
        self,
        mesh: DeviceMesh,
        mode: FakeTensorMode,
        cut: SplitContext,
        price: CollectivePrice,
        stream: Placement | None = None,
    ) -> None:
        """`stream`: how activations lie between the blocks; whole on every rank if not said."""
        self._mesh, self._mode, self._cut, self._price = mesh, mode, cut, price
        self._stream = [stream or Replicate()]

    def of_block(self, block: ModuleCall, inside: Sequence[ModuleCall]) -> Layouts:
        """`inside`: the calls within the block, names relative to it."""
        groups = [[self._owner(call) for call in group] for group in _groups(inside)]
        groups = [[owner for owner in group if owner.columns or owner.rows] for group in groups]
        whole = self._try(block, {})
        if whole is None:  # it does not run on distributed tensors at all
            return {}
        forward = sum(whole.work.forward.flops.values())
        pairs = []
        for first, columns in enumerate(groups):
            for second in range(first + 1, len(groups)):
                for layouts in _pairs(columns, groups[second]):
                    run = self._try(block, layouts, forward_only=True)
                    if run is not None and (saved := forward - run.work.flops) > 0:
                        pairs.append(_Pair(self._sent(run.work) / (_TIMES * saved), first, second, layouts=layouts))
        return self._disjoint(pairs, block, whole.work.flops)

    def _disjoint(self, pairs: list["_Pair"], block: ModuleCall, flops: int) -> Layouts:
        """The cheapest pairs first, no group in two of them. What backward costs is looked at only where what forward
        costs says that the pair may be the cheapest; `flops`: of the uncut block, both ways."""
        taken: set[int] = set()
        found: Layouts = {}
        heapify(pairs)
        while pairs:
            pair = heappop(pairs)
            if {pair.first, pair.second} & taken:
                continue
            if pair.known:
                taken |= {pair.first, pair.second}
                found |= pair.layouts
            elif (run := self._try(block, pair.layouts)) is not None and run.work.flops < flops:
                price = self._sent(run.work) / (flops - run.work.flops)
                heappush(pairs, replace(pair, price=price, known=True))
        return found

    def of_tables(
        self, model: nn.Module, outside: Sequence[ModuleCall], largest: int, run: Callable[[], Tensor]
    ) -> Layouts:
        """Large matrices outside the blocks: embeddings and the head. `run` is the model with its loss, `largest` the
        parameters of its largest block.

        A table that is looked up gives sums, the head gives cut classes; either is taken if the model then gets by with
        sums over ranks, without gathering what was cut.
        """
        found: Layouts = {}
        for call in outside:
            own = [each for each in call.module.parameters(recurse=False) if each.dim() == 2]
            if not own or call.given is None or own[0].numel() < _LARGE * largest:
                continue
            owner = self._owner(call)
            for layouts in owner.columns if call.given.is_floating_point() else owner.rows:
                cut = self.run_model_cut(model, _texts(found | layouts), run)
                if cut is not None and all(each.kind == "all_reduce" for each in cut.work.collectives):
                    found |= layouts
                    break
        return found

    def run_model_cut(self, model: nn.Module, layouts: Mapping[str, str], run: Callable[[], Tensor]) -> BlockRun | None:
        """What a model costs a rank that is cut so; None where it cannot be."""
        count = OpCounter(self._mode)
        try:
            with self._cut(model, layouts), count:
                kept = SavedTensors(model)
                with kept.hooks():
                    loss = run()
                count.when = "backward"
                (loss.full_tensor() if isinstance(loss, DTensor) else loss).backward()  # type: ignore[no-untyped-call]
        except Exception:
            return None
        return BlockRun(count.work, kept.size, count.matmul_output_bytes)

    def _sent(self, work: Work) -> float:
        return sum(map(self._price, work.collectives))

    def run_cut(self, block: ModuleCall, layouts: Mapping[str, str]) -> BlockRun | None:
        """What a block costs a rank that is cut so; None where it cannot be."""
        return self._try(block, {name: Layout.parse(text) for name, text in layouts.items()})

    def _try(self, call: ModuleCall, layouts: Layouts, forward_only: bool = False) -> BlockRun | None:
        """What the call costs so, forward and, unless that is enough, backward; None where DTensor cannot do it."""
        arguments, kwargs, stream = self._distributed(call)
        count = OpCounter(self._mode)
        try:
            with self._cut(call.module, _texts(layouts)), count:
                kept = SavedTensors(call.module)
                with kept.hooks():
                    outputs = pytree.tree_leaves(call.module(*arguments, **kwargs))
                output = next(each for each in outputs if isinstance(each, Tensor) and each.is_floating_point())
                if not isinstance(output, DTensor):
                    return None
                output = output.redistribute(placements=self._stream)
                kept.drop_chained(stream, [output])
                if forward_only:
                    return BlockRun(count.work, kept.size, count.matmul_output_bytes)
                count.when = "backward"
                output.backward(output.detach())  # type: ignore[no-untyped-call]
                if isinstance(stream.grad, DTensor):
                    stream.grad.redistribute(placements=self._stream)
                for parameter in call.module.parameters():
                    _sum_gradient(parameter)
        except Exception:  # whatever it was, this is not a way to cut the model
            return None
        return BlockRun(count.work, kept.size, count.matmul_output_bytes)

    def _distributed(self, call: ModuleCall) -> tuple[tuple[Any, ...], dict[str, Any], Tensor]:
        """The call's arguments with its first activation as the stream is."""
        leaves, form = pytree.tree_flatten(snapshot((call.arguments, call.kwargs)))
        place = next(n for n, each in enumerate(leaves) if isinstance(each, Tensor))
        stream = distribute_tensor(leaves[place].detach(), self._mesh, self._stream, src_data_rank=None)
        leaves[place] = stream.requires_grad_(stream.is_floating_point())
        arguments, kwargs = pytree.tree_unflatten(leaves, form)
        return arguments, kwargs, stream

    def _owner(self, call: ModuleCall) -> MatrixOwner:
        """Try every way to cut the module's matrix, alone: what comes out tells which way it is."""
        owner = MatrixOwner(call.name)
        parameters = dict(call.module.named_parameters(recurse=False))
        matrix = next((name for name, each in parameters.items() if each.dim() == 2), None)
        if matrix is None:
            return owner
        vectors = [name for name, each in parameters.items() if each.dim() == 1]
        for dim, length in enumerate(parameters[matrix].shape):
            others = parameters[matrix].numel() // length
            for parts in sorted({1, *(n for n in range(2, _MOST_PARTS + 1) if length % (n * others) == 0)}):
                for along in (vectors, []) if vectors else ([],):
                    layouts = {matrix: Layout(dim, parts), **{name: Layout(0, parts) for name in along}}
                    if self._classify(owner, call, parameters, layouts):
                        break
        return owner

    def _classify(
        self, owner: MatrixOwner, call: ModuleCall, parameters: Mapping[str, Tensor], layouts: Layouts
    ) -> bool:
        degree = self._mesh.size()
        if not all(layout.divides(tuple(parameters[name].shape), degree) for name, layout in layouts.items()):
            return False
        kind = self._outcome(call, layouts)
        full = {f"{owner.name}.{name}" if owner.name else name: layout for name, layout in layouts.items()}
        if kind == "cut":
            owner.columns.append(full)
        elif kind == "sum" and all(layout.parts == 1 for layout in layouts.values()):
            owner.rows.append(full)
        return kind != ""

    def _outcome(self, call: ModuleCall, layouts: Layouts) -> str:
        """Whether a module so cut gives a cut output of a whole input, or partial sums, with no exchange of its own."""
        arguments, kwargs, _ = self._distributed(call)
        seen: list[str] = []

        def look(_: nn.Module, __: Any, output: Any) -> None:
            if isinstance(output, DTensor):
                placement = output.placements[0]
                seen.append("sum" if placement.is_partial() else "" if placement.is_replicate() else "cut")

        handle = call.module.register_forward_hook(look)
        count = OpCounter(self._mode)
        try:
            with self._cut(call.module, _texts(layouts)), count:
                call.module(*arguments, **kwargs)
                exchanged = [each for each in count.collectives if each.kind != "all_reduce"]
        except Exception:
            return ""
        finally:
            handle.remove()
        return seen[0] if seen and not exchanged else ""


def _sum_gradient(parameter: Tensor) -> None:
    """Parts of a cut sequence give parts of a whole parameter's gradient, which are added up in the end."""
    gradient = parameter.grad
    if isinstance(parameter, DTensor) and isinstance(gradient, DTensor):
        gradient.redistribute(placements=parameter.placements)


def _texts(layouts: Layouts) -> dict[str, str]:
    return {name: str(layout) for name, layout in layouts.items()}


def _groups(calls: Sequence[ModuleCall]) -> list[list[ModuleCall]]:
    """Modules with a matrix of their own, in the order of the model; those given the same activation together."""
    groups: dict[int, list[ModuleCall]] = {}
    for call in calls:
        if call.given is not None and any(each.dim() == 2 for each in call.module.parameters(recurse=False)):
            groups.setdefault(id(call.given), []).append(call)
    return list(groups.values())


def _pairs(columns: Sequence[MatrixOwner], rows: Sequence[MatrixOwner]) -> list[Layouts]:
    """All owners of one group cut one way, all of the other the other way; parts are tried alike for a whole group."""
    found = []
    for n in range(max((len(owner.columns) for owner in columns), default=0)):
        for m in range(max((len(owner.rows) for owner in rows), default=0)):
            if all(len(owner.columns) > n for owner in columns) and all(len(owner.rows) > m for owner in rows):
                chosen = [owner.columns[n] for owner in columns] + [owner.rows[m] for owner in rows]
                found.append({name: layout for each in chosen for name, layout in each.items()})
    return found


def pattern(block: str) -> str:
    """`blocks.3` → `blocks.*`"""
    return re.sub(r"(^|\.)\d+(?=\.|$)", r"\1*", block)
