"""What an expert writes by hand for the GPT of examples/gpt.py: DDP or FSDP2, clipping, the guard, the mean loss.

`torchrun --nproc-per-node 2 benchmarks/bare.py` trains a step or two, for the time from launch to the first step.
"""

import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import gpt

SIZES = {"width": 256, "depth": 4, "context": 64, "batch": 16}
LR = 3e-3
Step = Callable[[int, Tensor, Tensor], float]


def build() -> nn.Module:
    torch.manual_seed(0)
    return gpt.GPT(SIZES["width"], SIZES["depth"], heads=4, context=SIZES["context"])


def bare_step(engine: str, precision: str, steps: int) -> Step:
    """One step by hand, on this rank's samples: returns the loss of the whole batch."""
    module = build()
    if engine == "ddp":
        model: nn.Module = DistributedDataParallel(module, gradient_as_bucket_view=True)
    else:
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        settings = {"mp_policy": policy} if precision == "bf16" else {}
        for block in module.blocks:
            fully_shard(block, **settings)
        model = fully_shard(module, **settings)
    named = list(module.named_parameters())
    plain = [p for name, p in named if "norm" in name or name.endswith(".bias")]
    decayed = [p for name, p in named if not ("norm" in name or name.endswith(".bias"))]
    groups = [{"params": decayed}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, weight_decay=0.1, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / 20, (1 + math.cos(math.pi * step / steps)) / 2)
    )

    def step(_: int, text: Tensor, target: Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if precision == "bf16" else nullcontext():
            logits = model(text)
            loss = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        total = norm.full_tensor() if isinstance(norm, DTensor) else norm
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        value = mean.item() / dist.get_world_size()
        if math.isfinite(value) and math.isfinite(total.item()):
            optimizer.step()
        schedule.step()
        return value

    return step


def main() -> None:
    """The whole program, as its user would start it."""
    dist.init_process_group("gloo")
    data = gpt.Source(slice(0, -3), SIZES["context"])
    sampler = DistributedSampler(data)
    share = SIZES["batch"] // dist.get_world_size()
    loader = DataLoader(data, share, sampler=sampler, collate_fn=gpt.collate, num_workers=1)
    step = bare_step("ddp", "fp32", 2)
    for number, (text, target) in zip(range(2), loader, strict=False):
        loss = step(number, text, target)
        if dist.get_rank() == 0:
            print(f"step {number + 1}/2  loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
