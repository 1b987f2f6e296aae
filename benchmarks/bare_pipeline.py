"""What an expert writes by hand to run examples/llama.py in two stages: a module for each, torch's own stage and 1F1B.

Clipping, the guard and the loss as in the other loops.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from bare import LR, SIZES, Step
from bare_tensor import build
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

ROUNDS = 4


class First(nn.Module):
    def __init__(self, model: nn.Module, blocks: int) -> None:
        super().__init__()
        self.words, self.layers = model.words, model.layers[:blocks]

    def forward(self, text: Tensor) -> Tensor:
        x = self.words(text)
        for layer in self.layers:
            x = layer(x)
        return x


class Last(nn.Module):
    def __init__(self, model: nn.Module, blocks: int) -> None:
        super().__init__()
        self.layers, self.norm, self.head = model.layers[-blocks:], model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def loss_of(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def stages_step(blocks: tuple[int, ...]) -> Step:
    """`blocks`: how many each of the two stages has."""
    rank, model = dist.get_rank(), build()
    module = First(model, blocks[0]) if rank == 0 else Last(model, blocks[1])
    batch = SIZES["batch"] // ROUNDS
    text = torch.zeros(batch, SIZES["context"], dtype=torch.int64)
    stream = torch.zeros(batch, SIZES["context"], SIZES["width"]).requires_grad_()
    logits = torch.zeros(batch, SIZES["context"], 256)
    shapes = {"input_args": text, "output_args": stream} if rank == 0 else {"input_args": stream, "output_args": logits}
    stage = PipelineStage(module, rank, 2, torch.device("cpu"), **shapes)
    schedule = Schedule1F1B(stage, ROUNDS, loss_fn=loss_of)
    parameters = list(module.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=LR, weight_decay=0.1, fused=True)

    def step(_: int, text: Tensor, target: Tensor) -> float:
        optimizer.zero_grad(set_to_none=True)
        losses: list[Tensor] = []
        if rank == 0:
            schedule.step(text, return_outputs=False)
        else:
            schedule.step(target=target, losses=losses, return_outputs=False)
        gradients = [p.grad for p in parameters]
        square = torch.stack(torch._foreach_norm(gradients)).square().sum()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        sums = torch.stack([loss, square])
        dist.all_reduce(sums)
        value, norm = sums[0].item(), math.sqrt(sums[1].item())
        torch._foreach_mul_(gradients, min(1.0, 1.0 / (norm + 1e-6)))
        if math.isfinite(value) and math.isfinite(norm):
            optimizer.step()
        return value

    return step
