"""Initial weights that depend on the seed and the model, never on plan or cluster.

The model's constructor runs on fake tensors while every operation is written to a tape; it costs no memory, whatever
the model's size. Each rank then replays, tensor by tensor, what led to the tensors it holds. Every random operation is
seeded by (seed, its number), so it draws the same however little else is replayed.

Words: a *storage* is the memory that a tensor and its views share; the tape knows tensors only by storage, size, stride
and offset, since nn.Parameter and `.data` re-wrap tensors without an operation that could be seen. A *write* is an
operation that makes or changes a storage; views write nothing and are not on the tape.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from onecurve.describe.errors import OnecurveError, UserCodeError
from onecurve.describe.seed import mix
from onecurve.device.rng import preserve_rng_state, seed_all

_READS_A_VALUE = torch.ops.aten._local_scalar_dense.default


@dataclass(frozen=True)
class _View:
    """A tensor as the tape knows it."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass(frozen=True)
class _Operation:
    function: Callable[..., Any]
    arguments: Any
    """Positional and keyword arguments, tensors replaced by views; real tensors stay as constants."""
    made: tuple[_View, ...]
    """Outputs in storages of their own."""
    outputs: tuple[int, ...]
    """Which of the outputs `made` are."""
    reads: frozenset[int]
    seed: int | None
    """None for an operation that draws nothing."""


class UnknownOriginError(Exception):
    """A tensor that the tape cannot make: loaded from a file, or made outside the constructor."""


class InitRecorder:
    """What a constructor did, and the means to do any part of it again for real."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self._operations: list[_Operation] = []
        self._writers: dict[int, list[int]] = {}
        self._random_operations = 0
        self._kept_alive: list[Any] = []  # so that no storage's address is used twice

    def value(self, tensor: Tensor) -> Tensor:
        """The real tensor that the constructor would have made, in host memory."""
        if not isinstance(tensor, FakeTensor):
            return tensor.detach().clone()
        with preserve_rng_state(), torch.no_grad():
            made = self._replay(self._slice(_storage(tensor), len(self._operations)))
        return _at(made, _view(tensor)).clone()

    def knows(self, tensor: Tensor) -> bool:
        """Whether the tensor can be made by replaying."""
        return not isinstance(tensor, FakeTensor) or _storage(tensor) in self._writers

    def next_seed(self, function: Any, arguments: Any) -> int | None:
        """The seed of the operation now being run, counted over random operations; None for the others."""
        if torch.Tag.nondeterministic_seeded not in function.tags:
            return None
        self._random_operations += 1
        generators = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, torch.Generator)]
        base = generators[0].initial_seed() if generators else self._seed
        return mix(base, self._random_operations)

    def write(self, function: Any, arguments: Any, result: Any, seed: int | None) -> None:
        """Put an operation on the tape, unless it only made a view."""
        inputs = [leaf for leaf in pytree.tree_leaves(arguments) if isinstance(leaf, FakeTensor)]
        known = {_storage(tensor) for tensor in inputs}
        if not known <= self._writers.keys():
            raise UnknownOriginError(f"{function} reads a tensor that was not made by an operation")
        outputs = [leaf if isinstance(leaf, FakeTensor) else None for leaf in pytree.tree_leaves(result)]
        fresh = [
            number for number, leaf in enumerate(outputs) if leaf is not None and _storage(leaf) not in self._writers
        ]
        mutated = _mutated(function, arguments)
        if not all(isinstance(tensor, FakeTensor) for tensor in mutated):
            raise UnknownOriginError(f"{function} writes into a tensor from outside the constructor")
        changed = {_storage(tensor) for tensor in mutated}
        if not fresh and not changed:
            return
        made = tuple(_view(leaf) for number in fresh if (leaf := outputs[number]) is not None)
        operation = _Operation(
            function, pytree.tree_map(_for_tape, arguments), made, tuple(fresh), frozenset(known), seed
        )
        self._kept_alive.append([tensor.untyped_storage() for tensor in [*inputs, *outputs] if tensor is not None])
        for storage in changed | {view.storage for view in made}:
            self._writers.setdefault(storage, []).append(len(self._operations))
        self._operations.append(operation)

    def _slice(self, storage: int, before: int) -> list[int]:
        """The numbers of all operations that what is in `storage` depends on, in order."""
        needed: set[int] = set()
        open_questions = [(storage, before)]
        while open_questions:
            asked, limit = open_questions.pop()
            writers = self._writers.get(asked, [])
            for number in writers[: bisect_left(writers, limit)]:
                if number not in needed:
                    needed.add(number)
                    open_questions += [(read, number) for read in self._operations[number].reads]
        return sorted(needed)

    def _replay(self, numbers: list[int]) -> dict[int, torch.UntypedStorage]:
        storages: dict[int, torch.UntypedStorage] = {}
        for number in numbers:
            operation = self._operations[number]
            if operation.seed is not None:
                torch.default_generator.manual_seed(operation.seed)
            args, kwargs = pytree.tree_map(lambda leaf: _for_replay(leaf, storages), operation.arguments)
            leaves = pytree.tree_leaves(operation.function(*args, **kwargs))
            for view, output in zip(operation.made, operation.outputs, strict=True):
                storages[view.storage] = _laid_out_as(leaves[output], view)
        return storages


class _RecordingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, recorder: InitRecorder) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder = recorder

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is _READS_A_VALUE and isinstance(args[0], FakeTensor):
            # The constructor wants to know a number: answer with what the replay so far makes of it.
            with _without_modes():
                return self._recorder.value(args[0]).item()
        seed = self._recorder.next_seed(func, (args, kwargs))
        fills = seed is not None and args and isinstance(args[0], FakeTensor) and _writes_first(func)
        result = args[0] if fills else func(*args, **kwargs)  # numbers drawn into a fake tensor change nothing of it
        self._recorder.write(func, (args, kwargs), result, seed)
        return result


class _SeedingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Runs a constructor for real, with the seeds the tape would have given."""

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
    """The module on fake tensors, and the tape that makes them real."""
    recorder = InitRecorder(seed)
    with preserve_rng_state():
        seed_all(mix(seed))
        with recorder.mode, _RecordingMode(recorder):
            module = build()
    if not isinstance(module, nn.Module):
        raise OnecurveError(f"Job: model() returned {type(module).__name__}; it must return a torch.nn.Module")
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if not recorder.knows(tensor):
            raise UnknownOriginError(f"{name} was not made by an operation")
    return module, recorder


def build_real(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """The module for real and whole: for constructors that cannot be recorded. Same weights as from a tape."""
    with preserve_rng_state():
        seed_all(mix(seed))
        try:
            with _SeedingMode(InitRecorder(seed)):
                return build()
        except OnecurveError:
            raise
        except Exception as error:
            raise UserCodeError(f"Job: model() raised {type(error).__name__}: {error}") from error


@contextmanager
def _without_modes() -> Iterator[None]:
    with torch.utils._python_dispatch._disable_current_modes():
        yield


def _storage(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _view(tensor: Tensor) -> _View:
    return _View(
        _storage(tensor), tensor.dtype, tuple(tensor.size()), tuple(tensor.stride()), int(tensor.storage_offset())
    )


def _at(storages: dict[int, torch.UntypedStorage], view: _View) -> Tensor:
    tensor = torch.empty(0, dtype=view.dtype)
    return tensor.set_(storages[view.storage], view.offset, view.size, view.stride)


def _laid_out_as(tensor: Tensor, view: _View) -> torch.UntypedStorage:
    """The storage of `tensor`, copied where its layout is not the one that the fake tensor promised."""
    if tuple(tensor.stride()) == view.stride and tensor.storage_offset() == view.offset:
        return tensor.untyped_storage()
    return torch.empty_strided(view.size, view.stride, dtype=view.dtype).copy_(tensor).untyped_storage()


def _for_tape(leaf: Any) -> Any:
    if isinstance(leaf, FakeTensor):
        return _view(leaf)
    if isinstance(leaf, Tensor):
        with _without_modes():
            return leaf.detach().clone()
    return leaf


def _for_replay(leaf: Any, storages: dict[int, torch.UntypedStorage]) -> Any:
    if isinstance(leaf, _View):
        return _at(storages, leaf)
    return leaf.clone() if isinstance(leaf, Tensor) else _without_generator(leaf)


def _without_generator(leaf: Any) -> Any:
    """A user's own generator is replaced by the seeded default one (its seed is part of the operation's)."""
    return None if isinstance(leaf, torch.Generator) else leaf


def _writes_first(function: Any) -> bool:
    """Whether an operation writes into its first argument and gives it back."""
    first, returns = function._schema.arguments[0].alias_info, function._schema.returns
    return first is not None and first.is_write and len(returns) == 1 and returns[0].alias_info is not None


def _mutated(function: Any, arguments: Any) -> list[Tensor]:
    """The tensors that an operation writes into, by its schema."""
    if not function._schema.is_mutable:
        return []
    args, kwargs = arguments
    changed: list[Tensor] = []
    for number, parameter in enumerate(function._schema.arguments):
        if parameter.alias_info is not None and parameter.alias_info.is_write:
            value = args[number] if number < len(args) else kwargs.get(parameter.name)
            changed += [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, Tensor)]
    return changed
