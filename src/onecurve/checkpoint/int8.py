"""Weight-only int8 quantization by torchao, written in torchao's safetensors layout: one scale per row of a weight."""

import json
import logging
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError


class Int8:
    """Quantizes the weights of a model's linear layers, except weights tied to another module (a tied output head)."""

    def __init__(self, model: nn.Module) -> None:
        self._torchao = _Torchao()
        names_by_id: dict[int, list[str]] = {}
        for name, parameter in model.named_parameters(remove_duplicate=False):
            names_by_id.setdefault(id(parameter), []).append(name)
        linear = {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        self._quantized = {names[0] for names in names_by_id.values() if len(names) == 1 and names[0] in linear}

    def quantize_tensor(self, name: str, tensor: Tensor) -> tuple[Mapping[str, Tensor], Mapping[str, str]]:
        """Return one weight as the tensors and the metadata entries that torchao stores for it.

        Tensors that are not quantized are returned unchanged.
        """
        if name not in self._quantized:
            return {name: tensor}, {}
        linear = nn.Linear(tensor.shape[1], tensor.shape[0], bias=False, device="meta")
        linear.weight = nn.Parameter(tensor)
        self._torchao.quantize(linear)
        tensors, metadata = self._torchao.flatten({name: linear.weight})
        return tensors, {key: text for key, text in metadata.items() if key == name}

    def metadata(self, names: Iterable[str]) -> dict[str, str]:
        """Return the file-wide metadata entry in which torchao looks up which of these tensors are quantized."""
        return {"tensor_names": json.dumps([name for name in names if name in self._quantized])}

    def quantize_model(self, model: nn.Module) -> None:
        """Quantize the same weights of `model` in place, to evaluate it."""
        self._torchao.quantize(model, filter_fn=lambda _, name: f"{name}.weight" in self._quantized)


class _Torchao:
    """The functions of torchao that are used here, imported on first use because torchao is an optional dependency."""

    def __init__(self) -> None:
        logging.getLogger("torchao").setLevel(logging.ERROR)  # it warns of missing kernels for other devices
        logging.getLogger("torch.utils._pytree").setLevel(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict
                from torchao.quantization import (
                    Int8DynamicActivationInt8WeightConfig,
                    Int8WeightOnlyConfig,
                    IntxWeightOnlyConfig,
                    quantize_,
                )
                from torchao.quantization.granularity import PerAxis
        except ImportError:
            raise OnecurveError("int8 needs torchao; run pip install 'onecurve[int8]'") from None
        self.flatten = flatten_tensor_state_dict
        self._quantize = quantize_
        self._weights, self._dynamic = Int8WeightOnlyConfig(), Int8DynamicActivationInt8WeightConfig()
        self._rows = IntxWeightOnlyConfig(weight_dtype=torch.int8, granularity=PerAxis(0))

    def quantize(self, model: nn.Module, dynamic: bool = False, **kwargs: Any) -> None:
        """Quantize linear layers. `dynamic`: also their inputs, when they are called."""
        self._quantize(model, self._dynamic if dynamic else self._weights, **kwargs)

    def quantize_embeddings(self, model: nn.Module) -> None:
        self._quantize(model, self._rows, filter_fn=lambda module, _: isinstance(module, nn.Embedding))


KINDS = ("weight-only", "dynamic")
"""Kinds of integer inference."""


def quantize_for_inference(model: nn.Module, kind: str) -> None:
    """Quantize the linear layers and embeddings of a model in place. A weight that several of them share is quantized
    for each."""
    torchao = _Torchao()
    torchao.quantize_embeddings(model)
    torchao.quantize(model, dynamic=kind == "dynamic")


def tensor_bytes(model: nn.Module) -> int:
    """Bytes of all parameters and buffers; those that are shared count once."""
    tensors = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return sum(map(_bytes, tensors.values()))


def _bytes(tensor: Any) -> int:
    if not hasattr(tensor, "__tensor_flatten__"):
        return int(tensor.nbytes)
    names, _ = tensor.__tensor_flatten__()
    return sum(_bytes(getattr(tensor, name)) for name in names)
