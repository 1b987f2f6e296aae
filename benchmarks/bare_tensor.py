"""Hand-written tensor-parallel training loops for examples/llama.py, as an expert would write them.

One loop uses PyTorch's `parallelize_module`, the other plain local tensors with explicit all-reduces. Gradient
clipping, the skipping of steps that are not finite and the loss are the same as in bare.py. overhead.py measures
onecurve against both loops.
"""

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from bare import LR, SIZES, Step
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, loss_parallel, parallelize_module

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import llama

_COLWISE, _ROWWISE = ("q", "k", "v", "gate", "up"), ("o", "down")


def build() -> nn.Module:
    torch.manual_seed(0)
    return llama.Llama(SIZES["width"], SIZES["depth"], heads=4, kv_heads=2, hidden=2 * SIZES["width"])


def styles_step(mesh: DeviceMesh) -> Step:
    """Return a function that trains one step of a model split by `parallelize_module`."""
    model = build()
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {name: ColwiseParallel() for name in _COLWISE} | {name: RowwiseParallel() for name in _ROWWISE},
        )
        _use_local_heads(layer, mesh.size())
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"embedding": RowwiseParallel(input_layouts=Replicate()), "head": head})

    def mean_loss(text: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(text).flatten(0, 1), target.flatten())

    return _step_function(model, mean_loss, loss_parallel)


def local_step(mesh: DeviceMesh, compiled: bool) -> Step:
    """Return a function that trains one step without DTensors: each rank holds slices of the layers and all-reduces
    partial sums. Embedding and head are replicated."""
    model = build()
    tensor_rank, degree = mesh.get_local_rank(), mesh.size()
    for layer in model.layers:
        for name in (*_COLWISE, *_ROWWISE):
            linear = getattr(layer, name)
            local_weight = linear.weight.detach().chunk(degree, 0 if name in _COLWISE else 1)[tensor_rank]
            linear.weight = nn.Parameter(local_weight.contiguous())
            linear.weight.is_split = True
        _use_local_heads(layer, degree)
        layer.attention_norm.register_forward_hook(lambda *call: _AllReduceBackward.apply(call[-1]))
        layer.mlp_norm.register_forward_hook(lambda *call: _AllReduceBackward.apply(call[-1]))
        layer.o.register_forward_hook(lambda *call: _AllReduceForward.apply(call[-1]))
        layer.down.register_forward_hook(lambda *call: _AllReduceForward.apply(call[-1]))
        if compiled:
            layer.compile()

    def mean_loss(text: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(text).flatten(0, 1), target.flatten())

    return _step_function(model, mean_loss)


class _AllReduceBackward(torch.autograd.Function):
    """The identity in forward; all-reduces the gradient in backward."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _AllReduceForward(torch.autograd.Function):
    """All-reduces its input in forward; the identity in backward."""

    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def _use_local_heads(layer: nn.Module, degree: int) -> None:
    """Set the layer's head counts to those of one tensor rank."""
    layer.heads //= degree
    layer.kv_heads //= degree
    layer.forward = _local_forward(layer, degree)


def _local_forward(layer: nn.Module, degree: int) -> Callable[[Tensor], Tensor]:
    """Return the forward of the example's layer with the local width where heads are concatenated."""

    def forward(x: Tensor) -> Tensor:
        B, T, D = x.shape
        y = layer.attention_norm(x)
        q = layer.q(y).view(B, T, layer.heads, layer.head_size).transpose(1, 2)
        k = layer.k(y).view(B, T, layer.kv_heads, layer.head_size).transpose(1, 2)
        v = layer.v(y).view(B, T, layer.kv_heads, layer.head_size).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(llama.rotate(q), llama.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + layer.o(mixed.transpose(1, 2).reshape(B, T, D // degree))
        y = layer.mlp_norm(x)
        return x + layer.down(F.silu(layer.gate(y)) * layer.up(y))

    return forward


def _step_function(
    model: nn.Module, mean_loss: Callable[[Tensor, Tensor], Tensor], loss_context: Any = nullcontext
) -> Step:
    parameters = list(model.parameters())
    split = [p for p in parameters if isinstance(p, DTensor) or hasattr(p, "is_split")]
    replicated = [p for p in parameters if not (isinstance(p, DTensor) or hasattr(p, "is_split"))]
    optimizers = [torch.optim.AdamW(group, lr=LR, weight_decay=0.1, fused=True) for group in (split, replicated)]

    def step(_: int, text: Tensor, target: Tensor) -> float:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        with loss_context():
            loss = mean_loss(text, target)
            loss.backward()
        gradients = [[_local(p.grad) for p in group] for group in (split, replicated)]
        squared_norms = [torch.stack(torch._foreach_norm(group)).square().sum() for group in gradients]
        dist.all_reduce(squared_norms[0])
        loss_value, norm = _local(loss).item(), math.sqrt(squared_norms[0].item() + squared_norms[1].item())
        for group in gradients:
            torch._foreach_mul_(group, min(1.0, 1.0 / (norm + 1e-6)))
        if math.isfinite(loss_value) and math.isfinite(norm):
            for optimizer in optimizers:
                optimizer.step()
        return loss_value

    return step


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
