"""Follows what a model's forward makes of its blocks' outputs, on fake tensors.

Every storage carries labels: which blocks' tensors and which units went into it. An operation hands its arguments'
labels on to its results, whether gradients flow or not. What a block returns begins anew, with a label of its own.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onecurve.describe.dataflow import Dataflow, Source
from onecurve.describe.errors import OnecurveError

Labels = frozenset[Source | str]


def trace_dataflow(
    model: nn.Module, blocks: Sequence[str], mode: FakeTensorMode, forward: Callable[[], object]
) -> Dataflow:
    """`forward` runs the model on fake tensors of `mode`."""
    trace = _Trace(model, blocks)
    with ExitStack() as stack:
        stack.enter_context(mode)
        stack.enter_context(trace)
        for handle in trace.hooks(model):
            stack.callback(handle.remove)
        output = forward()
    _refuse_repeated(blocks, trace.called)
    consumers = [*trace.consumed, trace.labels(output)]
    used = [frozenset(each for each in labels if isinstance(each, str)) for labels in consumers]
    idle = frozenset(trace.units).difference(*used)
    return Dataflow(
        tuple(trace.called),
        tuple(trace.units),
        tuple(tuple(sorted(each for each in labels if isinstance(each, Source))) for labels in consumers),
        (*used[:-1], used[-1] | idle),  # what nobody needs must be somewhere all the same
        frozenset(trace.opened),
    )


class _Trace(TorchDispatchMode):
    def __init__(self, model: nn.Module, blocks: Sequence[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._blocks = set(blocks)
        self.units = side_units(model, blocks)
        self.called: list[str] = []
        self.consumed: list[Labels] = []
        self._found: dict[int, Labels] = {}
        self._owned: dict[int, str] = {}
        """What units hold: a label only for who uses it without calling the unit."""
        self._given: dict[int | None, int] = {}
        """What the block now running was given, and how often it had been written into."""
        self.opened: set[str] = set()
        self._alive: dict[int, object] = {}  # so that no storage's address is used twice
        self._inside = 0
        for name in self.units:
            unit = model.get_submodule(name)
            for tensor in (*unit.parameters(), *unit.buffers()):
                key = self._key(tensor)
                if key is not None:
                    self._owned.setdefault(key, name)

    def hooks(self, model: nn.Module) -> list[Any]:
        handles = []
        for name in (*self._blocks, *self.units):
            module = model.get_submodule(name)
            handles.append(module.register_forward_pre_hook(self._begin(name), with_kwargs=True))
            handles.append(module.register_forward_hook(self._end(name)))
        return handles

    def labels(self, values: Any) -> Labels:
        """Of everything in a nest of tensors."""
        tensors = [each for each in pytree.tree_leaves(values) if isinstance(each, Tensor)]
        return frozenset().union(*map(self._of, tensors))

    def __torch_dispatch__(
        self, operation: Any, types: Any, arguments: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = operation(*arguments, **kwargs)
        labels = self.labels((arguments, kwargs))
        if labels:
            written = [
                value
                for value, argument in zip(arguments, operation._schema.arguments, strict=False)
                if argument.alias_info is not None and argument.alias_info.is_write
            ]
            for leaf in pytree.tree_leaves((result, written)):
                if isinstance(leaf, Tensor):
                    self._mark(leaf, self._of(leaf) | labels)
        return result

    def _begin(self, name: str) -> Callable[..., None]:
        def begin(_: nn.Module, *given: Any) -> None:
            if name in self._blocks:
                self.called.append(name)
                self.consumed.append(self.labels(given))
                tensors = [each for each in pytree.tree_leaves(given) if isinstance(each, Tensor)]
                self._given = {self._key(each): each._version for each in tensors}
            self._inside += 1

        return begin

    def _end(self, name: str) -> Callable[..., None]:
        def end(_: nn.Module, __: Any, output: Any) -> None:
            self._inside -= 1
            tensors = [each for each in pytree.tree_leaves(output) if isinstance(each, Tensor)]
            for number, tensor in enumerate(tensors):
                if name in self._blocks:
                    # What the block was given and hands on is still what it was.
                    handed_on = self._given.get(self._key(tensor)) == tensor._version
                    before: Labels = self._of(tensor) if handed_on else frozenset()
                    self._mark(tensor, before | {Source(len(self.called) - 1, number)})
                else:
                    self._mark(tensor, self._of(tensor) | {name})

        return end

    def _of(self, tensor: Tensor) -> Labels:
        key = self._key(tensor)
        if key is None:
            return frozenset()
        found: Labels = self._found.get(key, frozenset())
        if self._inside or key not in self._owned:
            return found
        self.opened.add(self._owned[key])
        return found | {self._owned[key]}

    def _mark(self, tensor: Tensor, labels: Labels) -> None:
        key = self._key(tensor)
        if key is not None:
            self._found[key] = labels

    def _key(self, tensor: Tensor) -> int | None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a tensor without memory of its own
            return None
        key: int = storage._cdata
        self._alive[key] = storage
        return key


def side_units(model: nn.Module, blocks: Sequence[str]) -> list[str]:
    """The outermost modules beside the blocks that hold something and contain no block."""
    above = {"", *(".".join(name.split(".")[:n]) for name in blocks for n in range(1, name.count(".") + 1))}
    found: list[str] = []
    for name, module in model.named_modules():
        inside = any(name == each or name.startswith(each + ".") for each in (*blocks, *found))
        if name in above or inside:
            continue
        if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
            found.append(name)
    return found


def _refuse_repeated(blocks: Sequence[str], called: Sequence[str]) -> None:
    times = Counter(called)
    for name in blocks:
        if times[name] != 1:
            raise OnecurveError(
                f"model: its forward calls the block {name!r} {times[name]} times; a pipeline needs blocks that are "
                "called once, one after the other: use another axis"
            )
