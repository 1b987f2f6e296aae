"""Initial weights that depend only on the seed and the model, never on the plan or the cluster.

The model's constructor runs on fake tensors while every operation is recorded. This needs no memory for the model,
whatever its size. Each rank then replays, tensor by tensor, the operations that produced the tensors it holds. Every
random operation is seeded with (seed, its number among the random operations), so it draws the same numbers no matter
which other operations are replayed.

Terms: a *storage* is the memory that a tensor shares with its views. The recorder identifies tensors by storage, size,
stride and offset, because nn.Parameter and `.data` wrap tensors without an operation that can be observed. A *write* is
an operation that creates or changes a storage; operations that only make views are not recorded.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.seed import mix
from onecurve.device.rng import preserve_rng_state, seed_all
from onecurve.model.batch_norm import without_sync_batch_norm
from onecurve.model.compiled import without_compile
from onecurve.model.fake_mode import GuardedFakeMode
from onecurve.model.host_device import HostDevice
from onecurve.model.recording_context import inline_threads, refused_parameter_classes, swappable_parameters
from onecurve.model.weight_files import recorded_weight_files

_READS_A_VALUE = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True)
class _View:
    """The identity of a recorded tensor: a view of a storage."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Operation:
    """One recorded operation."""

    function: Callable[..., Any]
    arguments: Any
    """The pair (positional, keyword arguments), with fake tensors replaced by views; real tensors are constants."""
    created: tuple[_View, ...]
    """The outputs that have new storages."""
    created_outputs: tuple[int, ...]
    """The positions of `created` among all outputs."""
    reads: frozenset[int]
    """The storages of the inputs."""
    seed: int | None
    """The seed of a random operation, None for any other."""


class UnknownOriginError(Exception):
    """A tensor cannot be replayed: no operation of the constructor created it."""


class InitRecorder:
    """The recorded operations of a constructor, and their replay with real tensors."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.mode = GuardedFakeMode()
        self._operations: list[_Operation] = []
        self._writers: dict[int, list[int]] = {}  # storage → numbers of the operations that write into it
        self._random_operations = 0
        self._storages: list[Any] = []  # held so that no storage address is reused

    def value(self, tensor: Tensor) -> Tensor:
        """Return the real tensor that the constructor would have created, in host memory."""
        if not isinstance(tensor, FakeTensor):
            return tensor.detach().clone()
        return _tensor_at(self._storages_of(tensor), _view(tensor)).clone()

    def memory(self, tensor: Tensor) -> Tensor:
        """Return all memory that the tensor shares with its views, as a real tensor of one dimension."""
        if not isinstance(tensor, FakeTensor):
            return memory_of(tensor).clone()
        storage = self._storages_of(tensor)[_storage(tensor)]
        return torch.empty(0, dtype=tensor.dtype, device=storage.device).set_(storage).clone()

    def _storages_of(self, tensor: Tensor) -> dict[int, torch.UntypedStorage]:
        """The real storages that are needed for the tensor's, and this one."""
        with preserve_rng_state(), torch.no_grad():
            return self._replay(self._dependencies(_storage(tensor), len(self._operations)))

    def knows(self, tensor: Tensor) -> bool:
        """True if `value` can return the tensor."""
        return not isinstance(tensor, FakeTensor) or _storage(tensor) in self._writers

    def next_seed(self, function: Any, arguments: Any) -> int | None:
        """Return the seed of the operation about to run, from the count of random operations; None for others."""
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return None
        self._random_operations += 1
        generators = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Generator)]
        base = generators[0].initial_seed() if generators else self._seed
        return mix(base, self._random_operations)

    def write(self, function: Any, arguments: Any, result: Any, seed: int | None) -> None:
        """Record an operation, unless it only makes a view."""
        inputs = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, FakeTensor)]
        reads = {_storage(tensor) for tensor in inputs}
        if not reads <= self._writers.keys():
            raise UnknownOriginError(f"{function} reads a tensor that no recorded operation created")
        outputs = [leaf if isinstance(leaf, FakeTensor) else None for leaf in pytree.tree_leaves(result)]
        created_outputs = [
            number for number, leaf in enumerate(outputs) if leaf is not None and _storage(leaf) not in self._writers
        ]
        mutated = _mutated(function, arguments)
        if not all(isinstance(tensor, FakeTensor) for tensor in mutated):
            raise UnknownOriginError(f"{function} writes into a tensor that was created outside the constructor")
        changed = {_storage(tensor) for tensor in mutated}
        if not created_outputs and not changed:
            return
        created = tuple(_view(leaf) for number in created_outputs if (leaf := outputs[number]) is not None)
        operation = _Operation(
            function=function,
            arguments=pytree.tree_map(_to_recorded, arguments),
            created=created,
            created_outputs=tuple(created_outputs),
            reads=frozenset(reads),
            seed=seed,
        )
        self._append(operation, changed, [tensor for tensor in [*inputs, *outputs] if tensor is not None])

    def constant(self, stored: Tensor) -> Tensor:
        """Record a real tensor, for example of a memory-mapped file; return a fake tensor in its place.

        It is copied at each replay and not before, so a mapped file is read only where its tensors are needed.
        """
        with _without_modes(), self.mode:
            fake = torch.empty_strided(stored.size(), stored.stride(), dtype=stored.dtype, device=stored.device)
        operation = _Operation(
            function=stored.clone,
            arguments=((), {}),
            created=(_view(fake),),
            created_outputs=(0,),
            reads=frozenset(),
            seed=None,
        )
        self._append(operation, set(), [fake])
        return fake

    def _append(self, operation: _Operation, changed: set[int], tensors: list[Tensor]) -> None:
        self._storages.append([tensor.untyped_storage() for tensor in tensors])
        for storage in changed | {view.storage for view in operation.created}:
            self._writers.setdefault(storage, []).append(len(self._operations))
        self._operations.append(operation)

    def _dependencies(self, storage: int, before: int) -> list[int]:
        """The numbers of all operations before `before` that the contents of `storage` depend on, in order."""
        needed: set[int] = set()
        pending = [(storage, before)]
        while pending:
            current, limit = pending.pop()
            writers = self._writers.get(current, [])
            for number in writers[: bisect_left(writers, limit)]:
                if number not in needed:
                    needed.add(number)
                    pending += [(read, number) for read in self._operations[number].reads]
        return sorted(needed)

    def _replay(self, numbers: list[int]) -> dict[int, torch.UntypedStorage]:
        storages: dict[int, torch.UntypedStorage] = {}
        for number in numbers:
            operation = self._operations[number]
            if operation.seed is not None:
                torch.default_generator.manual_seed(operation.seed)
            args, kwargs = pytree.tree_map(lambda leaf: _to_replayed(leaf, storages), operation.arguments)
            leaves = pytree.tree_leaves(operation.function(*args, **kwargs))
            for view, output in zip(operation.created, operation.created_outputs, strict=True):
                storages[view.storage] = _storage_with_layout(leaves[output], view)
        return storages


class _RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records every operation of a constructor that runs on fake tensors."""

    def __init__(self, recorder: InitRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _READS_A_VALUE and isinstance(args[0], FakeTensor):
            # The constructor reads a number: replay the operations so far to answer with its real value.
            with _without_modes():
                return self._recorder.value(args[0]).item()
        seed = self._recorder.next_seed(func, (args, kwargs))
        fills = seed is not None and args and isinstance(args[0], FakeTensor) and _writes_first(func)
        result = args[0] if fills else func(*args, **kwargs)  # filling a fake tensor with random numbers has no effect
        self._recorder.write(func, (args, kwargs), result, seed)
        return result


class _SeedingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs a constructor with real tensors and with the seeds that a recording would have used."""

    def __init__(self, recorder: InitRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        seed = self._recorder.next_seed(func, (args, kwargs))
        if seed is not None:
            torch.default_generator.manual_seed(seed)
            args, kwargs = pytree.tree_map(_without_generator, (args, kwargs))
        return func(*args, **kwargs)


def record(build: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, InitRecorder]:
    """Run the constructor `build` on fake tensors; return the module and the recorder that can make it real."""
    recorder = InitRecorder(seed)
    with preserve_rng_state():
        seed_all(mix(seed))
        with _recording(recorder):
            module = _call(build)
            _refuse_built_before(module, build)
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not recorder.knows(tensor):
            raise UnknownOriginError(f"{name} was created by no recorded operation")
    return module, recorder


def build_real(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """Run the constructor `build` with real tensors, for constructors that cannot be recorded. The weights are the same
    as those of a recording."""
    with preserve_rng_state():
        seed_all(mix(seed))
        try:
            with _SeedingMode(InitRecorder(seed)), HostDevice():
                return _call(build)
        except OnecurveError:
            raise
        except Exception as error:
            raise UserCodeError(f"Job: model() raised {type(error).__name__}: {error}") from error


def _call(build: Callable[[], nn.Module]) -> nn.Module:
    module = build()
    if not isinstance(module, nn.Module):
        raise OnecurveError(f"Job: model() returned {type(module).__name__}; it must return a torch.nn.Module")
    module = without_sync_batch_norm(without_compile(module))
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(tensor):
            raise OnecurveError(
                f"Job: model() left {name!r} without a shape, as lazy modules do until their first forward; use the "
                "module with its sizes (nn.Linear(in_features, out_features) instead of nn.LazyLinear(out_features)), "
                "or run the model once on a sample in the function that builds it"
            )
        if tensor.is_meta:
            raise OnecurveError(
                f"Job: model() left {name!r} on the meta device, so it has no value; initialize it, or build the model "
                "without torch.device('meta'): onecurve allocates only what a rank needs anyway"
            )
    return module


def _refuse_built_before(module: nn.Module, build: Callable[[], nn.Module]) -> None:
    """A module that is returned again has been trained meanwhile. Its tensors are real, unlike those made here."""
    parameters = list(module.parameters())
    if not parameters or any(isinstance(parameter, FakeTensor) for parameter in parameters):
        return
    if next(_call(build).parameters(), None) is parameters[0]:
        raise OnecurveError(
            "Job: model() returns the same module each time; it must build a new one: model=lambda: MyModel(…), "
            "without a module that was built outside of the function"
        )


@contextmanager
def _recording(recorder: InitRecorder) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(inline_threads())
        stack.enter_context(swappable_parameters())
        stack.enter_context(refused_parameter_classes())
        stack.enter_context(recorded_weight_files(recorder.constant))
        stack.enter_context(recorder.mode)
        stack.enter_context(_RecordingMode(recorder))
        stack.enter_context(HostDevice())
        yield


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch.utils._python_dispatch._disable_current_modes():
        yield


def memory_of(tensor: Tensor) -> Tensor:
    """The memory that a real tensor shares with its views, as a tensor of one dimension."""
    return torch.empty(0, dtype=tensor.dtype, device=tensor.device).set_(tensor.untyped_storage())


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _view(tensor: Tensor) -> _View:
    return _View(
        _storage(tensor), tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
    )


def _tensor_at(storages: dict[int, torch.UntypedStorage], view: _View) -> Tensor:
    storage = storages[view.storage]
    tensor = torch.empty(0, dtype=view.dtype, device=storage.device)
    return tensor.set_(storage, view.offset, view.size, view.stride)


def _storage_with_layout(tensor: Tensor, view: _View) -> torch.UntypedStorage:
    """The storage of `tensor`, copied if its stride or offset differs from that of the fake tensor."""
    if tuple(tensor.stride()) == view.stride and tensor.storage_offset() == view.offset:
        return tensor.untyped_storage()
    laid_out = torch.empty_strided(view.size, view.stride, dtype=view.dtype, device=tensor.device)
    return laid_out.copy_(tensor).untyped_storage()


def _to_recorded(leaf: Any) -> Any:
    """Convert an argument for recording: fake tensors become views, real tensors are copied."""
    if isinstance(leaf, FakeTensor):
        return _view(leaf)
    if isinstance(leaf, Tensor):
        with _without_modes():
            return leaf.detach().clone()
    return leaf


def _to_replayed(leaf: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    """Convert a recorded argument for replay: views become real tensors, constants are copied."""
    if isinstance(leaf, _View):
        return _tensor_at(storages, leaf)
    return leaf.clone() if isinstance(leaf, Tensor) else _without_generator(leaf)


def _without_generator(leaf: Any) -> Any:
    """Replace a user's generator by the default one, whose seed is derived from the user's generator."""
    return None if isinstance(leaf, torch.Generator) else leaf


def _writes_first(function: Any) -> bool:
    """True if an operation writes into its first argument and returns it."""
    first, returns = function._schema.arguments[0].alias_info, function._schema.returns
    return first is not None and first.is_write and len(returns) == 1 and returns[0].alias_info is not None


def _mutated(function: Any, arguments: Any) -> list[Tensor]:
    """The tensors that an operation writes into, according to its schema."""
    if not function._schema.is_mutable:
        return []
    args, kwargs = arguments
    changed: list[Tensor] = []
    for number, parameter in enumerate(function._schema.arguments):
        if parameter.alias_info is not None and parameter.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(parameter.name)
            changed += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return changed
