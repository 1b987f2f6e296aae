"""The user's model before its memory is allocated: recorded on fake tensors if possible, otherwise real.

A deferred model is consumed by the part that is built from it. Anything that only has to look at the model (tracing,
shape inference) works on a copy, because a forward may leave fake tensors behind in the module's attributes.
"""

import copy
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DynamicOutputShapeException, FakeTensor, FakeTensorMode
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch, map_tensors
from onecurve.model.compiled import COMPILE_REMOVED, is_compiled
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.model.fake_mode import copy_user_attributes
from onecurve.model.fake_operations import register_fake_operations
from onecurve.model.python_state import python_state_kept
from onecurve.model.recorder import InitRecorder, build_real, record

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DeferredModel:
    """A module on fake tensors, and the recorder that can materialize them."""

    module: nn.Module
    recorder: InitRecorder | None
    """None if the module is already real, because its constructor could not be recorded."""
    warning: str = ""
    """Why the constructor could not be recorded; empty if it was."""
    compile_removed: bool = False
    """True if the user had compiled the model or modules of it."""
    record_again: Callable[[], tuple[nn.Module, InitRecorder]] | None = None
    """Runs the constructor once more, for modules that cannot be copied."""
    is_filled_later: bool = False
    """True if a checkpoint fills all parameters and persistent buffers, so that they need no initial values."""

    def to_traceable(self) -> "TraceableModule":
        """Return the module itself, to be run on fake tensors. This consumes the deferred model."""
        mode = self._require_recorder().mode
        mode.allow_non_fake_inputs = True
        return TraceableModule(self.module, mode)

    def trace_copy(self) -> "TraceableModule":
        """Return a copy on fake tensors that can be run, and changed by running, without touching this model."""
        mode = self._require_recorder().mode
        try:
            module = _copy_module(self.module, mode)
        except Exception:  # an attribute of the user's module does not allow a deep copy
            _log.info("the model cannot be copied; its constructor is recorded once more", exc_info=True)
            assert self.record_again is not None
            module, recorder = self.record_again()
            mode = recorder.mode
        mode.allow_non_fake_inputs = True
        return TraceableModule(module, mode)

    def _require_recorder(self) -> InitRecorder:
        if self.recorder is None:
            raise OnecurveError(f"model: {self.warning}; this needs a constructor that can be recorded")
        return self.recorder

    @property
    def messages(self) -> list[str]:
        """What the user should know about how the model was built."""
        return [message for message in (self.warning, COMPILE_REMOVED if self.compile_removed else "") if message]

    @property
    def parameters(self) -> int:
        """Elements of all parameters."""
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def parameter_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.module.parameters())

    @property
    def trainable_bytes(self) -> int:
        return sum(parameter.nbytes for parameter in self.module.parameters() if parameter.requires_grad)


@dataclass(frozen=True)
class TraceableModule:
    """A copy of a deferred model, on fake tensors: running it computes shapes and no values."""

    module: nn.Module
    mode: FakeTensorMode

    def forward(self, micro: MicroBatch) -> object:
        """Run the module on fake copies of the inputs."""
        with python_state_kept(self.module), self.mode, DataDependentFallback():
            return self.fake_batch(micro).forward(self.module)

    def fake_batch(self, micro: MicroBatch) -> MicroBatch:
        """Return the micro-batch with every tensor replaced by a fake one."""
        inputs, target = map_tensors(self._fake, (micro.inputs, micro.target))
        return MicroBatch(inputs, target, micro.samples)

    def _fake(self, tensor: Tensor) -> Tensor:
        return tensor if isinstance(tensor, FakeTensor) else self.mode.from_tensor(tensor)


def defer_init(build: Callable[[], nn.Module], seed: int) -> DeferredModel:
    """Run the user's constructor on fake tensors; run it for real if fake tensors cannot follow it."""
    register_fake_operations()
    compile_removed = False

    def build_and_look() -> nn.Module:
        nonlocal compile_removed
        module = build()
        compile_removed = isinstance(module, nn.Module) and is_compiled(module)
        return module

    try:
        module, recorder = record(build_and_look, seed)
        return DeferredModel(
            module=module,
            recorder=recorder,
            compile_removed=compile_removed,
            record_again=lambda: record(build, seed),
        )
    except OnecurveError:
        raise
    except Exception as error:  # user code under fake tensors may raise anything; the real constructor decides
        reason = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
        if isinstance(error, DynamicOutputShapeException):
            reason = f"the shape of what {error.func} returns depends on values, which a recording does not have"
        _log.info("the model's constructor could not be recorded", exc_info=True)
    module = build_real(build_and_look, seed)
    warning = f"the model's constructor could not be recorded ({reason}); every rank builds it in full"
    return DeferredModel(module=module, recorder=None, warning=warning, compile_removed=compile_removed)


def _copy_module(module: nn.Module, mode: FakeTensorMode) -> nn.Module:
    """Deep-copy a module; its tensors become new fake tensors of the same size, and shared tensors stay shared.

    torch's own deep copy of a fake tensor reads its data pointer, so every tensor is entered in the memo beforehand.
    """
    memo: dict[int, Any] = {}
    originals = list(_tensors_of(module))  # referenced while the memo is used: it knows them by id
    with mode, torch.no_grad():
        for tensor in originals:
            if id(tensor) not in memo:
                memo[id(tensor)] = _fake_like(tensor)
    return copy.deepcopy(module, memo)


def _fake_like(tensor: Tensor) -> Tensor:
    fake = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    if isinstance(tensor, nn.Parameter):
        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
    else:
        fake.requires_grad_(tensor.requires_grad)
    copy_user_attributes(tensor, fake)
    return fake


def _tensors_of(module: nn.Module) -> Iterator[Tensor]:
    """Yield parameters, buffers, and tensors in plain attributes of all submodules."""
    for submodule in module.modules():
        for value in submodule.__dict__.values():
            for leaf in pytree.tree_leaves(value):
                if isinstance(leaf, Tensor):
                    yield leaf
