"""Replaces trained layers by tensor trains that approximate them."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from onecurve.describe.errors import OnecurveError
from onecurve.nn.tensor_train import tensor_train_of
from onecurve.nn.tt_embedding import TTEmbedding
from onecurve.nn.tt_linear import TTLinear


@dataclass(frozen=True)
class Compressed:
    """A layer that was replaced by a tensor train.

    Args:
        name: The layer's name in the model.
        before: Parameters of the layer before.
        after: Parameters of the tensor train.
        error: Norm of the difference of the two weights, over the norm of the weight before.

    Example::

        oc.nn.Compressed(name="mlp.0", before=65_536, after=5_120, error=0.4)
    """

    name: str
    before: int
    after: int
    error: float

    def __str__(self) -> str:
        return f"{self.name}: {self.before:,} → {self.after:,} parameters, relative error {self.error:.2f}"


def compress(model: nn.Module, pattern: str, rank: int, cores: int = 2) -> list[Compressed]:
    """Replace linear layers and embeddings of a model by tensor trains that approximate their weights (TT-SVD).

    The model is changed. Train it further afterwards: save its `state_dict()` with safetensors, build the same model in
    the job's `model`, and give the file as `Job(weights=…)`.

    Args:
        model: The model, with the weights that are to be approximated.
        pattern: Names of the layers, where `*` matches any text and `|` separates alternatives.
        rank: Rank of the tensor trains; ranks that are too high for a layer are lowered.
        cores: Number of cores. Default: 2.

    Returns:
        The layers that were replaced, with the error that this makes.

    Example::

        model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
        for layer in oc.nn.compress(model, "*", rank=16):
            print(layer)
    """
    found = list(_layers(model, pattern))
    if not found:
        raise OnecurveError(
            f"compress: {pattern!r} matches no nn.Linear or nn.Embedding of the model; a pattern must match the whole "
            "name of a module, for example 'blocks.*.mlp.*'"
        )
    _refuse_ties(model, [name for name, _ in found])
    return [_replace(model, name, layer, rank, cores) for name, layer in found]


def _layers(model: nn.Module, pattern: str) -> Iterator[tuple[str, nn.Linear | nn.Embedding]]:
    for name, module in model.named_modules():
        chosen = any(fnmatchcase(name, alternative) for alternative in pattern.split("|"))
        if chosen and name and type(module) in (nn.Linear, nn.Embedding):
            assert isinstance(module, nn.Linear | nn.Embedding)
            yield name, module


def _refuse_ties(model: nn.Module, names: list[str]) -> None:
    """A weight that is used under another name would be trained twice, once in either form."""
    weights = {id(model.get_parameter(f"{name}.weight")): f"{name}.weight" for name in names}
    for other, parameter in model.named_parameters(remove_duplicate=False):
        if weights.get(id(parameter), other) != other:
            raise OnecurveError(
                f"compress: {weights[id(parameter)]} is the same tensor as {other}; leave it out of the pattern"
            )


def _replace(model: nn.Module, name: str, layer: nn.Linear | nn.Embedding, rank: int, cores: int) -> Compressed:
    new: TTLinear | TTEmbedding
    if isinstance(layer, nn.Linear):
        new = TTLinear(layer.in_features, layer.out_features, rank, layer.bias is not None, cores)
        matrix = layer.weight.T
    else:
        new = TTEmbedding(layer.num_embeddings, layer.embedding_dim, rank, cores)
        rows = new.train_shape.rows
        matrix = layer.weight.new_zeros(torch.Size(rows).numel(), layer.embedding_dim)
        matrix[: layer.num_embeddings] = layer.weight.detach()
    new.to(layer.weight.device, layer.weight.dtype)
    with torch.no_grad():
        for core, value in zip(new.cores, tensor_train_of(matrix, new.train_shape), strict=True):
            core.copy_(value)
        if isinstance(new, TTLinear) and new.bias is not None:
            new.bias.copy_(layer.bias)  # type: ignore[arg-type]
        error = _relative(new.full_weight(), layer.weight)
    new.train(layer.training)
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, new)
    return Compressed(name, _size(layer), _size(new), error)


def _relative(approximation: Tensor, weight: Tensor) -> float:
    return float((approximation - weight).double().norm() / weight.double().norm().clamp(min=1e-30))


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
