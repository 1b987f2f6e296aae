"""A hand-written training loop for examples/llama.py in two pipeline stages, as an expert would write it.

Each stage is a module of its own, run by PyTorch's `PipelineStage` and `Schedule1F1B`. Gradient clipping, the skipping
of steps that are not finite and the loss are the same as in bare.py. overhead.py measures onecurve against this loop.
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


class FirstStage(nn.Module):
    """The embedding and the first `blocks` layers."""

    def __init__(self, model: nn.Module, blocks: int) -> None:
        super().__init__()
        self.embedding, self.layers = model.embedding, model.layers[:blocks]

    def forward(self, text: Tensor) -> Tensor:
        x = self.embedding(text)
        for layer in self.layers:
            x = layer(x)
        return x


class LastStage(nn.Module):
    """The last `blocks` layers, the final norm and the output head."""

    def __init__(self, model: nn.Module, blocks: int) -> None:
        super().__init__()
        self.layers, self.norm, self.head = model.layers[-blocks:], model.norm, model.head

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def mean_loss(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def stages_step(blocks: tuple[int, ...]) -> Step:
    """Return a function that trains one step. `blocks`: the number of layers in each of the two stages."""
    rank, model = dist.get_rank(), build()
    module = FirstStage(model, blocks[0]) if rank == 0 else LastStage(model, blocks[1])
    micro_batch = SIZES["batch"] // ROUNDS
    text = torch.zeros(micro_batch, SIZES["context"], dtype=torch.int64)
    hidden = torch.zeros(micro_batch, SIZES["context"], SIZES["width"]).requires_grad_()
    logits = torch.zeros(micro_batch, SIZES["context"], 256)
    inputs, outputs = (text, hidden) if rank == 0 else (hidden, logits)
    stage = PipelineStage(module, rank, 2, torch.device("cpu"), input_args=inputs, output_args=outputs)
    schedule = Schedule1F1B(stage, ROUNDS, loss_fn=mean_loss)
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
        squared_norm = torch.stack(torch._foreach_norm(gradients)).square().sum()
        loss = torch.stack(losses).mean().detach() if losses else torch.zeros(())
        sums = torch.stack([loss, squared_norm])
        dist.all_reduce(sums)
        loss_value, norm = sums[0].item(), math.sqrt(sums[1].item())
        torch._foreach_mul_(gradients, min(1.0, 1.0 / (norm + 1e-6)))
        if math.isfinite(loss_value) and math.isfinite(norm):
            optimizer.step()
        return loss_value

    return step
