"""Traces, on fake tensors, which block outputs and which other modules each block depends on.

Every storage carries labels: the block outputs and the units (modules outside the blocks) that it was computed from. An
operation passes the labels of its arguments on to its results, whether or not gradients flow. The output of a block
starts again with a single label of its own.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from contextlib import ExitStack
from typing import Any

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onecurve.describe.dataflow import BlockOutput, Dataflow
from onecurve.describe.errors import OnecurveError
from onecurve.measure.blocks import count_calls

Labels = frozenset[BlockOutput | str]
"""Block outputs, and the names of units."""


def trace_dataflow(
    model: nn.Module, blocks: Sequence[str], mode: FakeTensorMode, forward: Callable[[], object]
) -> Dataflow:
    """Return the data flow between `blocks`. `forward` must run the model on fake tensors of `mode`.

    Raises OnecurveError if the forward does not call every block exactly once, or uses a tensor of a block outside it.
    """
    with mode:
        called = count_calls(model, lambda _: forward())
    tracer = _LabelTracer(model, blocks, side_units(model, blocks, set(called or ())))
    with ExitStack() as stack:
        stack.enter_context(mode)
        stack.enter_context(tracer)
        for handle in tracer.register_hooks(model):
            stack.callback(handle.remove)
        output = forward()
    _refuse_repeated(blocks, tracer.called)
    for tensor, block in tracer.used_outside_block.items():
        raise OnecurveError(
            f"model: the forward uses {tensor!r} outside of block {block!r}, and only the pipeline stage of that block "
            "holds it; return it from the block, or use another axis"
        )
    consumers = [*tracer.consumed, tracer.labels(output)]
    used = [frozenset(label for label in labels if isinstance(label, str)) for labels in consumers]
    unused = frozenset(tracer.units).difference(*used)
    return Dataflow(
        tuple(tracer.called),
        tuple(tracer.units),
        tuple(tuple(sorted(label for label in labels if isinstance(label, BlockOutput))) for labels in consumers),
        (*used[:-1], used[-1] | unused),  # unused units still need an owner: they go to the last stage
        frozenset(tracer.units_used_without_call),
    )


class _LabelTracer(TorchDispatchMode):
    """Propagates labels through every operation of a forward."""

    def __init__(self, model: nn.Module, blocks: Sequence[str], units: list[str]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._blocks = set(blocks)
        self.units = units
        self.called: list[str] = []
        """Blocks in the order of their calls."""
        self.consumed: list[Labels] = []
        """Labels of the inputs of each call in `called`."""
        self.units_used_without_call: set[str] = set()
        self._labels: dict[int, Labels] = {}
        """Labels by storage."""
        self._owning_unit: dict[int, str] = {}
        """The unit of each parameter and buffer, by storage. It becomes a label only outside module calls."""
        self.used_outside_block: dict[str, str] = {}
        """Parameters and buffers of blocks that the model uses while their block does not run → their block."""
        self._owning_block: dict[int, tuple[str, str]] = {}
        """The name and block of each parameter and buffer of a block, by storage."""
        self._input_versions: dict[int | None, int] = {}
        """Versions of the running block's input tensors at the time of the call, by storage."""
        self._alive: dict[int, object] = {}  # keeps storages alive, so that no address is used twice
        self._depth = 0
        """Number of blocks and units whose forward is running."""
        for unit, _, key in self._tensors_in(model, self.units):
            self._owning_unit.setdefault(key, unit)
        for block, name, key in self._tensors_in(model, blocks):
            self._owning_block.setdefault(key, (name, block))

    def register_hooks(self, model: nn.Module) -> list[Any]:
        """Register hooks on all blocks and units; return their handles."""
        handles = []
        for name in (*self._blocks, *self.units):
            module = model.get_submodule(name)
            handles.append(module.register_forward_pre_hook(self._pre_hook(name), with_kwargs=True))
            # Labelled twice, because hooks of the model in between may compute with the output, and may replace it.
            handles.append(module.register_forward_hook(self._label_output(name)))
            handles.append(module.register_forward_hook(self._label_output(name), prepend=True))
            handles.append(module.register_forward_hook(self._end_of_forward, prepend=True))
        return handles

    def labels(self, values: Any) -> Labels:
        """The union of the labels of all tensors in a nested structure."""
        return frozenset().union(*map(self._tensor_labels, _tensors(values)))

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
            for tensor in _tensors((result, written)):
                self._set_labels(tensor, self._tensor_labels(tensor) | labels)
        return result

    def _pre_hook(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, *inputs: Any) -> None:
            if name in self._blocks:
                self.called.append(name)
                self.consumed.append(self.labels(inputs))
                self._input_versions = {self._key(tensor): tensor._version for tensor in _tensors(inputs)}
            for tensor in _tensors(inputs):  # a parameter of another unit that is passed on counts as used
                self._set_labels(tensor, self._tensor_labels(tensor))
            self._depth += 1

        return hook

    def _end_of_forward(self, *_: Any) -> None:
        self._depth -= 1

    def _label_output(self, name: str) -> Callable[..., None]:
        def hook(_: nn.Module, __: Any, output: Any) -> None:
            for number, tensor in enumerate(_tensors(output)):
                if name in self._blocks:
                    # An input that the block returns unchanged keeps the labels it had.
                    unchanged = self._input_versions.get(self._key(tensor)) == tensor._version
                    before: Labels = self._tensor_labels(tensor) if unchanged else frozenset()
                    self._set_labels(tensor, before | {BlockOutput(len(self.called) - 1, number)})
                else:
                    self._set_labels(tensor, self._tensor_labels(tensor) | {name})

        return hook

    def _tensor_labels(self, tensor: Tensor) -> Labels:
        key = self._key(tensor)
        if key is None:
            return frozenset()
        labels: Labels = self._labels.get(key, frozenset())
        if self._depth:
            return labels
        if key not in self._owning_unit:
            if key in self._owning_block and not labels:  # with labels it is a block's output
                self.used_outside_block.update([self._owning_block[key]])
            return labels
        self.units_used_without_call.add(self._owning_unit[key])
        return labels | {self._owning_unit[key]}

    def _tensors_in(self, model: nn.Module, modules: Iterable[str]) -> Iterator[tuple[str, str, int]]:
        """The parameters and buffers of some modules: the module, the full name of the tensor, its storage."""
        for module_name in modules:
            module = model.get_submodule(module_name)
            for name, tensor in (*module.named_parameters(), *module.named_buffers()):
                key = self._key(tensor)
                if key is not None:
                    yield module_name, f"{module_name}.{name}", key

    def _set_labels(self, tensor: Tensor, labels: Labels) -> None:
        key = self._key(tensor)
        if key is not None:
            self._labels[key] = labels

    def _key(self, tensor: Tensor) -> int | None:
        try:
            storage = tensor.untyped_storage()
        except (NotImplementedError, RuntimeError):  # a tensor without a storage
            return None
        key: int = storage._cdata
        self._alive[key] = storage
        return key


def side_units(model: nn.Module, blocks: Sequence[str], called: Set[str]) -> list[str]:
    """Names of the outermost modules that have parameters or buffers, contain no block and are not inside one.

    `called`: the modules that a forward calls. A module that is not called itself, but from which others are called (a
    list that the model iterates over), is no unit: the modules within it are.
    """
    inner = [*blocks, *called]
    ancestors = {"", *(".".join(name.split(".")[:n]) for name in blocks for n in range(1, name.count(".") + 1))}
    ancestors |= {
        name for name, _ in model.named_modules() if name not in called and any(n.startswith(name + ".") for n in inner)
    }
    units: list[str] = []
    for name, module in model.named_modules():
        inside = any(name == outer or name.startswith(outer + ".") for outer in (*blocks, *units))
        if name in ancestors or inside:
            continue
        if next(module.parameters(), None) is not None or next(module.buffers(), None) is not None:
            units.append(name)
    return units


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(values) if isinstance(leaf, Tensor)]


def _refuse_repeated(blocks: Sequence[str], called: Sequence[str]) -> None:
    times = Counter(called)
    for name in blocks:
        if times[name] != 1:
            raise OnecurveError(
                f"model: the forward calls block {name!r} {times[name]} times; pipeline parallelism needs every block "
                "to be called exactly once; use another axis instead"
            )
