"""Two ranks compare operations on sharded tensors with the same operations on full tensors, forward and backward.

    torchrun --nproc-per-node 2 tests/jobs/sharded_operations.py

Prints one line per operation and placement that differs, raises, or must raise and does not; and how many there were.
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication

from onecurve.apply.dtensor_ops import register_dtensor_ops

dist.init_process_group("gloo")
register_dtensor_ops()
mesh = init_device_mesh("cpu", (2,))
torch.manual_seed(0)
BATCH, TIME, CLASSES = 4, 6, 8
values = torch.randn(BATCH, TIME, CLASSES, dtype=torch.float64)
labels = torch.randint(CLASSES, (BATCH, TIME))
labels[:, -1] = -100  # the last label of a shifted sequence
labels[1, 2:] = -100  # padding
weights = torch.rand(CLASSES, dtype=torch.float64)
ones = torch.ones(CLASSES, CLASSES, dtype=torch.float64)


def fill_slice(x):
    x = x * 2
    x[:, 1] = 0
    return x


def add_partial_sum(x):
    y = x * 1
    y += x.sum(-1, keepdim=True) @ ones[:1]
    return y


def add_to_partial_sum(x):
    y = x @ ones
    y += x
    return y


def fill_mask(x):
    y = x.clone()
    y.masked_fill_(values > 0, 1.0)
    return y


def copy_into_plain_tensor(x):
    cache = torch.zeros(BATCH, TIME, CLASSES, dtype=torch.float64)
    cache.copy_(x.detach())
    return x * cache


def read_value(x):
    return x * x.detach().sum().item()


def flatten_uneven(x):
    part = x[:3]
    if isinstance(x, DTensor):
        part = part.redistribute(placements=x.placements)
    return (part * 2).view(-1, CLASSES)


OPERATIONS = {
    "cross-entropy over positions": lambda x: F.cross_entropy(x.view(-1, CLASSES), labels.view(-1)),
    "cross-entropy with class weights": lambda x: F.cross_entropy(x.view(-1, CLASSES), labels.view(-1), weight=weights),
    "cross-entropy over a transposed dimension": lambda x: F.cross_entropy(x.transpose(1, 2), labels),
    "sum of cross-entropies": lambda x: F.cross_entropy(x.view(-1, CLASSES), labels.view(-1), reduction="sum"),
    "no strategy": lambda x: torch._weight_norm(x.flatten(0, 1)[:8], weights[:, None], 0),
    "cumulative product": lambda x: x.cumprod(1),
    "Fourier transform": lambda x: torch.fft.rfft(x, dim=1).abs(),
    "unfold": lambda x: x.unfold(1, 3, 1),
    "fill a slice": fill_slice,
    "add a partial sum in place": add_partial_sum,
    "add to a partial sum in place": add_to_partial_sum,
    "fill a mask in place": fill_mask,
    "copy into a plain tensor": copy_into_plain_tensor,
    "read a value": read_value,
    "flatten what is not divided evenly": flatten_uneven,
}
MUST_RAISE = {("fill a slice", Shard(1))}
"""The view of a slice along the sharded dimension is a copy."""


def difference(operation, placement) -> float:
    """Largest difference of result and gradient between a sharded and a full tensor."""
    full = values.clone().requires_grad_()
    sharded = distribute_tensor(values, mesh, [placement]).requires_grad_()
    with implicit_replication():
        expected = operation(full)
        expected.square().sum().backward()
        result = operation(sharded)
        loss = result.square().sum()
        loss.backward()
        result = result.full_tensor() if isinstance(result, DTensor) else result
    gradient = sharded.grad.full_tensor()
    return max(float((result - expected).detach().abs().max()), float((gradient - full.grad).abs().max()))


def main() -> None:
    cases = [(name, placement) for name in OPERATIONS for placement in (Shard(0), Shard(1), Shard(2), Replicate())]
    failures = []
    for name, placement in cases:
        try:
            size = difference(OPERATIONS[name], placement)
            failed = f"differs by {size}" if size > 1e-12 else ""
            if (name, placement) in MUST_RAISE:
                failed = "does not raise"
        except Exception as error:
            failed = "" if (name, placement) in MUST_RAISE else f"{type(error).__name__}: {error}"
        if failed:
            failures.append(f"{name}, {placement}: {failed}")
    if dist.get_rank() == 0:
        print("\n".join([*failures, f"{len(failures)} of {len(cases)} cases failed"]))


main()
dist.destroy_process_group()
