"""Losses in 16 bits on a device whose products round differently for other batch sizes: `mean_losses.py SEEDS`.

Prints how many losses that are means over samples were accepted, and how many of those that are not were refused.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import onecurve as oc


class Tokens:
    """Sequences of 8 tokens, of which some are padding."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        target = torch.randint(0, 50, (8,), generator=generator)
        target[int(torch.randint(2, 8, (), generator=generator)) :] = -100
        return torch.randint(0, 50, (8,), generator=generator), target


def per_sample(logits: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten().clamp(min=0))


def squares(logits: Tensor, target: Tensor) -> Tensor:
    return (logits - target.clamp(min=0)[..., None]).square().mean()


def over_tokens(logits: Tensor, target: Tensor) -> Tensor:
    kept = (target != -100).flatten()
    values = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=-100, reduction="none")
    return values[kept].mean()


def contrastive(logits: Tensor, _: Tensor) -> Tensor:
    embedding = F.normalize(logits.mean(1), dim=-1)
    return F.cross_entropy(embedding @ embedding.T, torch.arange(len(embedding), device=embedding.device))


def is_accepted(loss, precision: str, seed: int) -> bool:
    def model() -> nn.Module:
        return nn.Sequential(nn.Embedding(50, 64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 50))

    job = oc.Job(model=model, loss=loss, data=Tokens, optimizer=oc.SGD(lr=0.1), global_batch=16, steps=1, seed=seed)
    try:
        with oc.prepare(job, f"mb16 {precision}"):
            return True
    except oc.OnecurveError as error:
        if "loss " not in str(error):
            raise
        return False


seeds = range(int(sys.argv[1]))
means = [is_accepted(loss, p, seed) for loss in (per_sample, squares) for p in ("bf16", "fp16") for seed in seeds]
others = [is_accepted(loss, p, 0) for loss in (over_tokens, contrastive) for p in ("bf16", "fp16")]
print(f"accepted {sum(means)} of {len(means)}, refused {len(others) - sum(others)} of {len(others)}")
