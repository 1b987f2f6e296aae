"""What a model's modules return for a micro-batch, found on fake tensors: shapes and types, nothing computed."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.describe.errors import OnecurveError
from onecurve.job.batch import MicroBatch
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.model.deferred import DeferredModel
from onecurve.model.materialize import Materializer

_MOST = 256  # inputs of other sizes than these are sketched again


@dataclass(frozen=True)
class ModuleOutputs:
    returned: dict[str, list[Any]]
    """By module, what each of its calls returned."""
    output: Any


class ShapeInference:
    """A model that only tells shapes."""

    def __init__(
        self,
        deferred: DeferredModel,
        names: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """`names`: the modules to watch; `dtype`: what the model's parameters are computed with."""
        if deferred.recorder is None:
            raise OnecurveError(f"model: {deferred.warning}; a pipeline needs a constructor that can be recorded")
        self._module, self._mode, self._autocast = deferred.module, deferred.recorder.mode, autocast
        self._mode.allow_non_fake_inputs = True
        with self._mode:
            Materializer(None, device, dtype).materialize(self._module)
        self._returned: dict[str, list[Any]] = {}
        for name in names:
            self._module.get_submodule(name).register_forward_hook(self._watch(name))
        self._found: dict[object, ModuleOutputs] = {}

    def of(self, micro: MicroBatch, training: bool) -> ModuleOutputs:
        leaves, form = pytree.tree_flatten(micro.inputs)
        key = (training, *((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves), str(form))
        if key not in self._found:
            if len(self._found) == _MOST:
                self._found.clear()
            self._module.train(training)  # what a module returns may depend on it
            self._found[key] = self._see(pytree.tree_unflatten(map(self._fake, leaves), form), micro.samples)
        return self._found[key]

    def _see(self, inputs: Any, samples: int) -> ModuleOutputs:
        self._returned = {}
        with torch.no_grad(), self._mode, DataDependentFallback(), self._autocast():
            output = MicroBatch(inputs, None, samples).forward(self._module)
        return ModuleOutputs(self._returned, output)

    def _watch(self, name: str) -> Callable[..., None]:
        def watch(_: nn.Module, __: Any, output: Any) -> None:
            self._returned.setdefault(name, []).append(output)

        return watch

    def _fake(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        with self._mode:
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
