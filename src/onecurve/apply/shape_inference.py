"""Infer the shapes and dtypes that a model's modules return for a micro-batch, by running it on fake tensors."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from onecurve.job.batch import MicroBatch
from onecurve.model.data_dependent import DataDependentFallback
from onecurve.model.deferred import TraceableModule
from onecurve.model.materialize import Materializer

_MAX_CACHED_SHAPES = 256  # distinct input shapes; the cache is emptied when it is full


@dataclass(frozen=True)
class ModuleOutputs:
    """The fake outputs of one forward pass."""

    returned: dict[str, list[Any]]
    """Module name → what each of its calls returned, in order."""
    output: Any
    """The model's output."""


class ShapeInference:
    """A model on fake tensors, run to learn the shapes of its modules' outputs."""

    def __init__(
        self,
        traceable: TraceableModule,
        names: Sequence[str],
        device: torch.device,
        dtype: torch.dtype,
        autocast: Callable[[], AbstractContextManager[object]],
    ) -> None:
        """`names`: the modules whose outputs are recorded; `dtype`: the dtype of the parameters during forward."""
        self._module, self._mode, self._autocast = traceable.module, traceable.mode, autocast
        with self._mode:
            Materializer(None, device, dtype).materialize(self._module)
        self._returned: dict[str, list[Any]] = {}
        for name in names:
            self._module.get_submodule(name).register_forward_hook(self._recording_hook(name))
        self._cache: dict[object, ModuleOutputs] = {}

    def of(self, micro: MicroBatch, training: bool) -> ModuleOutputs:
        """Return the outputs for inputs of this micro-batch's shapes, cached by shape, dtype and mode."""
        leaves, structure = pytree.tree_flatten(micro.inputs)
        leaf_keys = ((tuple(x.shape), x.dtype) if isinstance(x, Tensor) else repr(x) for x in leaves)
        key = (training, *leaf_keys, str(structure))
        if key not in self._cache:
            if len(self._cache) == _MAX_CACHED_SHAPES:
                self._cache.clear()
            self._module.train(training)  # the structure of an output may depend on the mode
            self._cache[key] = self._run(pytree.tree_unflatten(map(self._fake, leaves), structure), micro.samples)
        return self._cache[key]

    def _run(self, inputs: Any, samples: int) -> ModuleOutputs:
        self._returned = {}
        with torch.no_grad(), self._mode, DataDependentFallback(), self._autocast():
            output = MicroBatch(inputs, None, samples).forward(self._module)
        return ModuleOutputs(self._returned, output)

    def _recording_hook(self, name: str) -> Callable[..., None]:
        def record(_: nn.Module, __: Any, output: Any) -> None:
            self._returned.setdefault(name, []).append(output)

        return record

    def _fake(self, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        with self._mode:
            return torch.empty_strided(leaf.shape, leaf.stride(), dtype=leaf.dtype, device=leaf.device)
