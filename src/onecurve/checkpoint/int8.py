"""int8 weights by torchao, in its own layout of safetensors: one scale per row, activations stay as they are."""

import json
import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError


class Int8:
    """Weights of linear layers, but for those that another part of the model has as well (a tied head)."""

    def __init__(self, model: nn.Module) -> None:
        self._torchao = _torchao()
        names: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), []).append(name)
        linear = {f"{name}.weight" for name, each in model.named_modules() if isinstance(each, nn.Linear)}
        self._names = {found[0] for found in names.values() if len(found) == 1 and found[0] in linear}

    def change(self, name: str, tensor: Tensor) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
        """One weight as torchao stores it."""
        if name not in self._names:
            return {name: tensor}, {}
        alone = nn.Linear(tensor.shape[1], tensor.shape[0], bias=False, device="meta")
        alone.weight = nn.Parameter(tensor)
        self._torchao.quantize(alone)
        tensors, facts = self._torchao.flatten({name: alone.weight})
        return tensors, {key: text for key, text in facts.items() if key == name}

    def facts(self, names: Iterable[str]) -> dict[str, str]:
        """What torchao looks for first: which of these it has to put together again."""
        return {"tensor_names": json.dumps([name for name in names if name in self._names])}

    def apply(self, model: nn.Module) -> None:
        """The same in place, for an evaluation."""
        self._torchao.quantize(model, filter_fn=lambda _, name: f"{name}.weight" in self._names)


class _torchao:  # noqa: N801
    def __init__(self) -> None:
        logging.getLogger("torchao").setLevel(logging.ERROR)  # it tells of kernels for other devices that it lacks
        logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
                from torchao.quantization import Int8WeightOnlyConfig, quantize_
        except ImportError:
            raise OnecurveError("export: int8 needs torchao; pip install 'onecurve[int8]'") from None
        self.flatten = flatten_tensor_state_dict
        self._quantize, self._config = quantize_, Int8WeightOnlyConfig()

    def quantize(self, model: nn.Module, **options: Any) -> None:
        self._quantize(model, self._config, **options)
