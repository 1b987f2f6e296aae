"""A hand-written training loop for the GPT of examples/gpt.py on DDP or FSDP2, as an expert would write it.

It clips gradients, skips steps that are not finite and averages the loss over ranks. overhead.py measures onecurve
against this loop.

`torchrun --nproc-per-node 2 benchmarks/bare.py` trains two steps and prints the loss of each; overhead.py uses it to
measure the time from launch to the first step.
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

import onecurve as oc

SIZES = {"width": 256, "depth": 4, "context": 64, "batch": 16}
LR = 3e-3
Step = Callable[[int, Tensor, Tensor], float]


def build() -> nn.Module:
    torch.manual_seed(0)
    return gpt.GPT(SIZES["width"], SIZES["depth"], heads=4, context=SIZES["context"])


def bare_step(engine: str, precision: str, steps: int) -> Step:
    """Return a function that trains one step on this rank's samples and returns the loss of the global batch."""
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
    no_decay = [p for name, p in named if "norm" in name or name.endswith(".bias")]
    decay = [p for name, p in named if not ("norm" in name or name.endswith(".bias"))]
    groups = [{"params": decay}, {"params": no_decay, "weight_decay": 0.0}]
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
        global_norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        loss_sum = loss.detach().clone()
        dist.all_reduce(loss_sum)
        mean_loss = loss_sum.item() / dist.get_world_size()
        if math.isfinite(mean_loss) and math.isfinite(global_norm.item()):
            optimizer.step()
        schedule.step()
        return mean_loss

    return step


def main() -> None:
    """Train two steps, as a user of torchrun would start it."""
    dist.init_process_group("gloo")
    dataset = oc.data.jsonl(f"{gpt.corpus(SIZES['context'])}/train").map(gpt.tokens)
    sampler = DistributedSampler(dataset)
    local_batch = SIZES["batch"] // dist.get_world_size()
    loader = DataLoader(dataset, local_batch, sampler=sampler, collate_fn=gpt.collate, num_workers=1)
    step = bare_step("ddp", "fp32", 2)
    for number, (text, target) in zip(range(2), loader, strict=False):
        loss = step(number, text, target)
        if dist.get_rank() == 0:
            print(f"step {number + 1}/2  loss {loss:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
