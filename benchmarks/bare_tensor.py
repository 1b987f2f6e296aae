"""What an expert writes by hand to cut examples/llama.py along the tensor axis: torch's parallel styles, or plain local
tensors with explicit sums. Clipping, the guard and the loss as in the other loops."""

import math
import sys
from collections.abc import Callable
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

_COLUMNS, _ROWS = ("q", "k", "v", "gate", "up"), ("o", "down")


def build() -> nn.Module:
    torch.manual_seed(0)
    return llama.Llama(SIZES["width"], SIZES["depth"], heads=4, kv_heads=2, hidden=2 * SIZES["width"])


def styles_step(mesh: DeviceMesh) -> Step:
    """torch's parallelize_module; the layers are told how many heads they have here."""
    model = build()
    for layer in model.layers:
        parallelize_module(
            layer,
            mesh,
            {name: ColwiseParallel() for name in _COLUMNS} | {name: RowwiseParallel() for name in _ROWS},
        )
        _halve(layer, mesh.size())
    head = ColwiseParallel(output_layouts=Shard(-1), use_local_output=False)
    parallelize_module(model, mesh, {"words": RowwiseParallel(input_layouts=Replicate()), "head": head})

    def loss_of(text: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(text).flatten(0, 1), target.flatten())

    return _stepping(model, loss_of, loss_parallel)


def local_step(mesh: DeviceMesh, compiled: bool) -> Step:
    """No distributed tensors at all: every rank holds slices and sums what must be summed. The vocabulary is whole."""
    model = build()
    place, degree = mesh.get_local_rank(), mesh.size()
    for layer in model.layers:
        for name in (*_COLUMNS, *_ROWS):
            linear = getattr(layer, name)
            part = linear.weight.detach().chunk(degree, 0 if name in _COLUMNS else 1)[place]
            linear.weight = nn.Parameter(part.contiguous())
            linear.weight.cut = True
        _halve(layer, degree)
        layer.attention_norm.register_forward_hook(lambda *call: _Enter.apply(call[-1]))
        layer.mlp_norm.register_forward_hook(lambda *call: _Enter.apply(call[-1]))
        layer.o.register_forward_hook(lambda *call: _Leave.apply(call[-1]))
        layer.down.register_forward_hook(lambda *call: _Leave.apply(call[-1]))
        if compiled:
            layer.compile()

    def loss_of(text: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(model(text).flatten(0, 1), target.flatten())

    return _stepping(model, loss_of)


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        gradient = gradient.contiguous()
        dist.all_reduce(gradient)
        return gradient


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(_: Any, x: Tensor) -> Tensor:
        x = x.clone()
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(_: Any, gradient: Tensor) -> Tensor:
        return gradient


def _halve(layer: nn.Module, degree: int) -> None:
    layer.heads //= degree
    layer.kv_heads //= degree
    layer.forward = _local_forward(layer, degree)


def _local_forward(layer: nn.Module, degree: int) -> Callable[[Tensor], Tensor]:
    """The example's forward with the local width where heads are joined, which is all an expert changes."""

    def forward(x: Tensor) -> Tensor:
        B, T, D = x.shape
        y = layer.attention_norm(x)
        q = layer.q(y).view(B, T, layer.heads, layer.size).transpose(1, 2)
        k = layer.k(y).view(B, T, layer.kv_heads, layer.size).transpose(1, 2)
        v = layer.v(y).view(B, T, layer.kv_heads, layer.size).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(llama.rotate(q), llama.rotate(k), v, is_causal=True, enable_gqa=True)
        x = x + layer.o(mixed.transpose(1, 2).reshape(B, T, D // degree))
        y = layer.mlp_norm(x)
        return x + layer.down(F.silu(layer.gate(y)) * layer.up(y))

    return forward


def _stepping(model: nn.Module, loss_of: Callable[[Tensor, Tensor], Tensor], around: Any = None) -> Step:
    parameters = list(model.parameters())
    cut = [p for p in parameters if isinstance(p, DTensor) or hasattr(p, "cut")]
    whole = [p for p in parameters if not (isinstance(p, DTensor) or hasattr(p, "cut"))]
    optimizers = [torch.optim.AdamW(each, lr=LR, weight_decay=0.1, fused=True) for each in (cut, whole)]

    def step(_: int, text: Tensor, target: Tensor) -> float:
        for optimizer in optimizers:
            optimizer.zero_grad(set_to_none=True)
        if around is None:
            loss = loss_of(text, target)
            loss.backward()
        else:
            with around():
                loss = loss_of(text, target)
                loss.backward()
        gradients = [[_local(p.grad) for p in each] for each in (cut, whole)]
        squares = [torch.stack(torch._foreach_norm(each)).square().sum() for each in gradients]
        dist.all_reduce(squares[0])
        value, norm = _local(loss).item(), math.sqrt(squares[0].item() + squares[1].item())
        for each in gradients:
            torch._foreach_mul_(each, min(1.0, 1.0 / (norm + 1e-6)))
        if math.isfinite(value) and math.isfinite(norm):
            for optimizer in optimizers:
                optimizer.step()
        return value

    return step


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
